"""Threads of our own: the script does not find them among its own, and its signals pass them by."""

import _thread
import signal
from collections.abc import Callable

#: What a thread does to itself.
_ITS_OWN = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"}


def start(run: Callable[..., None], *args: object) -> None:
    """Run a function in a thread that hears no signal: what the script's threads hold back stays held back."""
    if not hasattr(signal, "pthread_sigmask"):
        _thread.start_new_thread(run, args)
        return
    others = {number for number in signal.valid_signals() if _name(number) not in _ITS_OWN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, others)  # which the new thread takes over
    try:
        _thread.start_new_thread(run, args)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _name(number: int) -> str:
    return number.name if isinstance(number, signal.Signals) else ""
