"""A session that a signal ends: pytest says nothing then, and what its audits came to would be lost."""

from functools import partial

import pytest

from ampcheck.pytest_plugin import audits
from ampcheck.pytest_plugin.summary import FIRST, write
from ampcheck.run.endings import Endings

_ENDINGS = pytest.StashKey[Endings]()
#: The test that made the last audit: no report of it may be there yet.
_LAST = pytest.StashKey[pytest.Item]()


def stand_by(config: pytest.Config, node: pytest.Item | None = None) -> None:
    """See to it that a signal that ends the session has the audits said first; a worker's are said by its session."""
    if node is not None:
        config.stash[_LAST] = node
    if _ENDINGS not in config.stash and not hasattr(config, "workerinput"):
        config.stash[_ENDINGS] = Endings(partial(_say, config))
        config.add_cleanup(config.stash[_ENDINGS].close)


def _say(config: pytest.Config, ends: bool) -> None:  # noqa: FBT001  # a callback
    """Write the summary where pytest would have; the test that runs waits."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if not ends or reporter is None:
        return
    if capture is not None:
        capture.suspend()
    found, last = audits(reporter), config.stash.get(_LAST, None)
    if last is not None and last.nodeid not in dict(found):
        found.append((last.nodeid, last.user_properties))
    if any(name == FIRST for _, held in found for name, _ in held):
        reporter.ensure_newline()
        reporter.write_line("ampcheck: a signal ends this session; its audits so far:")
        write(reporter, found)
        reporter.flush()
