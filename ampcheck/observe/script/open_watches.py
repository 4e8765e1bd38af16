"""The watches that are open in this process: one at a time, and none while an audit runs."""

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol


class Open(Protocol):
    """A watch's hold on torch."""

    @property
    def open(self) -> bool:
        """Tell whether it still hears."""

    def aside(self) -> AbstractContextManager[None]:
        """Hear nothing for a while."""

    def close(self) -> None:
        """Let go."""


_OPEN: "weakref.WeakSet[Open]" = weakref.WeakSet()
#: What torch casts by, and the names it is called by, are the same for all threads.
_TURN = threading.RLock()
_audits: list[int] = []  #: threads that audit; one, unless an audit is made within one


def add(held: Open) -> None:
    """Take note of a watch that begins."""
    _OPEN.add(held)


def taken() -> bool:
    """Tell whether a watch or an audit is open: another watch would see, and replace, what is theirs."""
    return bool(_audits) or any(held.open for held in _OPEN)


@contextmanager
def audit() -> Iterator[None]:
    """Run an audit: those of other threads wait for their turn, and open watches look away."""
    with _TURN, ExitStack() as stack:
        for held in [held for held in _OPEN if held.open]:
            stack.enter_context(held.aside())
        _audits.append(threading.get_ident())
        try:
            yield
        finally:
            _audits.pop()


def _deafen_child() -> None:
    """Let go of torch in a forked process: nobody would read what is seen there."""
    for held in list(_OPEN):
        held.close()


# Once: what is registered for forks cannot be taken back.
os.register_at_fork(after_in_child=_deafen_child)
