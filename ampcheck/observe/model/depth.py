"""Room for deep models: while anything listens to modules, each call of one takes another frame of Python's stack."""

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Frames that an operation takes below the innermost module when it is recorded, and that lie above the script.
_OURS = 200


def _room(limit: int) -> int:
    """Return a limit under which a script can go as deep as alone: a module takes three frames there, and here four."""
    return limit + limit // 3 + _OURS


@contextmanager
def room() -> Iterator[None]:
    """Let modules be nested as deep as without us; the script sees the limit that it set."""
    real = sys.setrecursionlimit, sys.getrecursionlimit
    theirs = real[1]()

    def setrecursionlimit(limit: int, /) -> None:
        nonlocal theirs
        real[0](_room(limit) if limit > 0 else limit)
        theirs = limit

    def getrecursionlimit() -> int:
        return theirs

    ours = setrecursionlimit, getrecursionlimit
    setrecursionlimit(theirs)
    sys.setrecursionlimit, sys.getrecursionlimit = ours
    try:
        yield
    finally:
        if (sys.setrecursionlimit, sys.getrecursionlimit) == ours:
            sys.setrecursionlimit, sys.getrecursionlimit = real
        with contextlib.suppress(RecursionError):  # ended from deeper down than the limit
            real[0](theirs)
