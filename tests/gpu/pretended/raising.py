"""One row raises, then the stage itself."""

from settling.work import Job


def jobs(_scope):
    yield Job("good", lambda: {"found": 1})
    yield Job("bad", lambda: {"found": 1 / 0})
    yield Job("after", lambda: {"found": 2})
    raise LookupError("no such thing")
