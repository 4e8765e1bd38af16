"""The watches that are open in this process: one at a time, and none while an audit runs."""

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampcheck.observe.script.hooks import Hooks


_OPEN: "weakref.WeakSet[Hooks]" = weakref.WeakSet()
#: What torch casts by, and the names it is called by, are the same for all threads.
_TURN = threading.RLock()
_audits: list[int] = []  #: threads that audit; one, unless an audit is made within one


def add(held: "Hooks") -> None:
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
