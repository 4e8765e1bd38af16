"""Holding the audits of a session against a baseline, and writing a baseline from them, by worker or alone."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from ampcheck.compare.baseline import Baseline, accept, accepted_by, held
from ampcheck.compare.baseline_json import from_json, read, to_json
from ampcheck.compare.differences import compare
from ampcheck.errors import ReportError
from ampcheck.renderers import differences
from ampcheck.renderers.assertion_text import COMMAND, evidence, failure_text
from ampcheck.saved.report_json import write
from ampcheck.targets.userfile import shown
from ampcheck.values.report import Report
from ampcheck.values.wording import plural

#: What the update is registered as.
UPDATE = "ampcheck-update-baseline"
#: Where a worker leaves its baselines for the process that started it.
_OUTPUT = "ampcheck_baselines"


class BaselineUpdate:
    """Gathers the baselines of a session and writes them at its end, once."""

    def __init__(self, config: pytest.Config) -> None:
        """Start with nothing; `--ampcheck-reason` is why new findings are accepted."""
        self._reason = config.option.ampcheck_reason or accepted_by()
        self._made: dict[str, dict[str, Baseline]] = {}

    def take(self, path: Path, name: str, report: Report) -> Baseline:
        """Accept a report as it is; reasons that were given before are kept."""
        known = read(path) if path.exists() else {}
        made = accept(report, known.get(name), self._reason)
        self._made.setdefault(str(path), {})[name] = made
        return made

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker of pytest-xdist has gathered."""
        for path, text in getattr(node, "workeroutput", {}).get(_OUTPUT, {}).items():
            self._made.setdefault(path, {}).update(from_json(text))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the files, beside what they hold of other audits; a worker hands its part on."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = {path: to_json(made) for path, made in self._made.items()}
            return
        for path, made in self._made.items():
            before = read(path) if Path(path).exists() else {}
            write(path, to_json({**before, **made}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was written, and how many findings were accepted."""
        for path, made in self._made.items():
            terminalreporter.write_line(f"ampcheck: {plural(len(made), 'baseline')} written to {shown(path)}")
            accepted = sum(len(baseline.findings) for baseline in made.values())
            if accepted:
                terminalreporter.write_line(
                    f'  {plural(accepted, "finding")} accepted: a better "reason" can be written into the file'
                )


def hold(
    config: pytest.Config, report: Report, path: Path, name: str, words: list[str]
) -> tuple[Report, str]:
    """Return the report without what its baseline accepts, and what is to be said of the rest.

    `words` are those after `pytest` that run this audit again.
    """
    update = config.pluginmanager.get_plugin(UPDATE)
    if isinstance(update, BaselineUpdate):
        return held(report, update.take(path, name, report)), ""
    command = shlex.join(["pytest", *words, "--ampcheck-baseline", shown(path), "--ampcheck-update-baseline"])
    known = read(path) if path.exists() else {}
    if name not in known:
        raise ReportError(f"no baseline of {name!r} in {shown(path)}; add it with:", hint=command)
    left = held(report, known[name])
    found = compare(report, known[name])
    if not found:
        return left, ""
    text = failure_text(
        f"{plural(len(found), 'difference')} from the baseline",
        report,
        [f"{differences.MARKS[one.change][0]} {differences.sentence(one)}" for one in found],
        evidence(left, left.findings) if left.findings else [],
        ["", "if this is meant, accept it and commit the file:", f"{COMMAND}{command}"],
    )
    return left, text
