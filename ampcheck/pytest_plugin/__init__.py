"""What pytest loads at its start: hooks that cost nothing until a test audits a model or targets are asked for."""

from typing import TYPE_CHECKING

import pytest

from ampcheck.pytest_plugin import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampcheck.pytest_plugin.expectations import Audited
    from ampcheck.pytest_plugin.summary import Properties

#: The bench's fixture and gates come with this plug-in, and go with `-p no:ampcheck`.
pytest_plugins = ["ampcheck.bench.pytest_plugin"]

_MARKER = (
    "ampcheck(precision=..., fail_on=..., ignore=[...]): how amp_audit, or a collected target, is audited; "
    "several precisions make a test of each; with fail_on the audit itself fails on such findings"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and the ini names."""
    options.add(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, refuse ini names that are none, and let the targets that were named be collected."""
    config.addinivalue_line("markers", _MARKER)
    options.refuse_unknown_names(config)
    if options.used(config):
        from ampcheck.pytest_plugin.starting import start

        start(config)


@pytest.fixture
def amp_audit(request: pytest.FixtureRequest) -> "Callable[..., Audited]":
    """Return a function that audits a training step: `amp_audit(model, batch, loss, precision="fp16")`.

    What it returns is asked for what is expected: assert_safe(), assert_underflow_below(0.01), assert_no_overflow(),
    assert_fp32_set([...]), assert_scale_between(2**8, 2**16), assert_dtypes({...}).
    """
    from ampcheck.pytest_plugin.auditing import auditor

    return auditor(request)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each precision that a marker lists."""
    marker = metafunc.definition.get_closest_marker("ampcheck")
    if marker is not None and "amp_audit" in metafunc.fixturenames:
        from ampcheck.pytest_plugin.marking import precisions

        listed = precisions(marker)
        if len(listed) > 1:
            metafunc.parametrize("amp_audit", listed, ids=listed, indirect=True)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Hear of the audits of a worker of pytest-xdist, so that they are said even where a signal ends the session."""
    worker = getattr(report, "node", None)
    if worker is not None and report.when == "teardown" and report.user_properties:
        from ampcheck.pytest_plugin.ending import stand_by

        stand_by(worker.config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write what all audits of the session came to, wherever they ran."""
    found = audits(terminalreporter)
    if found:
        from ampcheck.pytest_plugin.summary import write

        write(terminalreporter, found)


def audits(reporter: pytest.TerminalReporter) -> "list[tuple[str, Properties]]":
    """Return what the tests of a session have said of their audits so far, and whatever else they have said."""
    return [
        (report.nodeid, report.user_properties)
        for reports in list(reporter.stats.values())
        for report in reports
        # The last report of a test has what all of it printed, also where its setup failed.
        if getattr(report, "when", None) == "teardown" and report.user_properties
    ]
