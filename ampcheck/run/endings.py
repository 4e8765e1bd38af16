"""Signals that end a script: what was seen is published first, then the script's own handling goes on.

The handlers of the script run as always, and `signal.getsignal` returns them; a signal that it ignores is ignored.
"""

import contextlib
import ctypes
import functools
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ampcheck.run import own_threads

#: Signals whose default is to end a process without a word, where this system has them.
ENDING = frozenset(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
    if hasattr(signal, name)
)
#: Seconds that a script is held up at most.
LIMIT = 20.0
#: Seconds after which a process that waits in C, and so runs no handler, is ended as it would have been.
GRACE = 2.0
#: Numbers of files that are looked at: a process may have far more.
_MANY = 65536


class Endings:
    """Stands before the script's handlers of signals that end it."""

    def __init__(self, publish: Callable[[bool], None]) -> None:
        """Begin; `publish` is shown whether the process will end, and runs in a thread of its own."""
        self._publish = publish
        self._theirs: dict[int, Any] = {}
        self._now: dict[int, threading.Event] = {}  #: what is being published, by signal
        self._set, self._get = signal.signal, signal.getsignal
        self._ear: tuple[socket.socket, socket.socket] | None = None
        if threading.current_thread() is not threading.main_thread():
            return
        for number in ENDING:
            if self._get(number) not in (signal.SIG_IGN, None):
                self._theirs[number] = self._get(number)
                self._set(number, self._handle)
        self._patched = (_calling(self._set, self._install), _calling(self._get, self._installed))
        signal.signal, signal.getsignal = self._patched
        if os.name == "posix":
            self._listen()
        _OPEN.add(self)

    def close(self, *, forked: bool = False) -> None:
        """Give the signals back; a process that was forked shares our ear with its parent."""
        if self not in _OPEN:
            return
        _OPEN.discard(self)
        if signal.signal is self._patched[0]:
            signal.signal = self._set
        if signal.getsignal is self._patched[1]:
            signal.getsignal = self._get
        with contextlib.suppress(ValueError):  # not the main thread any more
            for number, theirs in self._theirs.items():
                if self._get(number) == self._handle:
                    self._set(number, theirs)
            self._stop_listening(forked=forked)

    # -- what the script sees

    def _install(self, signalnum: int, handler: Any) -> Any:
        """Do as signal.signal does, with ours before the handler."""
        if signalnum not in ENDING or self not in _OPEN:
            return self._set(signalnum, handler)
        before = self._installed(signalnum)
        self._set(signalnum, handler)
        self._theirs.pop(signalnum, None)
        if handler != signal.SIG_IGN:
            self._theirs[signalnum] = self._get(signalnum)
            self._set(signalnum, self._handle)
        return before

    def _installed(self, signalnum: int) -> Any:
        """Do as signal.getsignal does."""
        found = self._get(signalnum)
        return self._theirs[signalnum] if found == self._handle else found

    # -- when a signal comes

    def _handle(self, number: int, frame: Any) -> None:
        """Publish, then do what the script wants done."""
        self._published(number).wait(LIMIT)
        self._now.pop(number, None)
        theirs = self._theirs.get(number, signal.SIG_DFL)
        if callable(theirs):
            theirs(number, frame)
        else:
            self._set(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _published(self, number: int) -> threading.Event:
        """Return what is set as soon as what was seen is published; whoever asks first begins with it."""
        mine = threading.Event()
        event = self._now.setdefault(number, mine)
        if event is mine:
            own_threads.start(self._run, number, mine)
        return event

    def _run(self, number: int, done: threading.Event) -> None:
        with contextlib.suppress(Exception):
            self._publish(not callable(self._theirs.get(number)))
        done.set()

    # -- where the main thread waits in C, Python runs no handler

    def _listen(self) -> None:
        ear, mouth = map(_out_of_the_way, socket.socketpair())
        mouth.setblocking(False)  # noqa: FBT003
        before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
        if before != -1:  # the script listens itself
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)
            ear.close()
            mouth.close()
            return
        self._ear = ear, mouth
        own_threads.start(self._hear, ear)

    def _hear(self, ear: socket.socket) -> None:
        with contextlib.suppress(OSError), ear:
            while heard := ear.recv(1):
                number = heard[0]
                if number in self._theirs:
                    self._published(number).wait(LIMIT)
                    if not callable(self._theirs.get(number)):
                        time.sleep(GRACE)
                        self._end(number)

    def _end(self, number: int) -> None:
        """End the process by a signal whose handler did not get to run; only C can say so from a thread."""
        if self in _OPEN and number in self._now:
            ctypes.CDLL(None).signal(number, 0)
            os.kill(os.getpid(), number)

    def _stop_listening(self, *, forked: bool) -> None:
        if self._ear is None:
            return
        ear, mouth = self._ear
        self._ear = None
        found = signal.set_wakeup_fd(-1)
        if found not in {-1, mouth.fileno()}:
            signal.set_wakeup_fd(found)  # the script's own, put in its place
        with contextlib.suppress(OSError):  # a script may have closed all files that it did not know
            mouth.close()
        with contextlib.suppress(OSError):
            if forked:
                ear.close()
            else:
                ear.shutdown(socket.SHUT_RDWR)  # who hears closes it


def _out_of_the_way(made: socket.socket) -> socket.socket:
    """Return a socket under a number that no file of the script's gets, should it close what it did not open."""
    import fcntl
    import resource

    with made:
        high = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _MANY) // 2
        return socket.socket(fileno=fcntl.fcntl(made.fileno(), fcntl.F_DUPFD_CLOEXEC, high))


def _calling(real: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that looks like one of Python's and does ours."""

    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    return call


#: Those that stand; a fork has the handlers of its parent, and would wake it up.
_OPEN: "weakref.WeakSet[Endings]" = weakref.WeakSet()
#: The signals that a thread held back before it began to fork.
_MASK = threading.local()


def _hold_back() -> None:
    """Let no signal reach a new child before it has its own handlers: it would speak into the ear of its parent."""
    _MASK.before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING) if _OPEN else None


def _let_go() -> None:
    before, _MASK.before = getattr(_MASK, "before", None), None
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _close_in_child() -> None:
    for endings in list(_OPEN):
        endings.close(forked=True)
    _let_go()


if hasattr(os, "register_at_fork"):
    # Once: what is registered for forks cannot be taken back.
    os.register_at_fork(before=_hold_back, after_in_parent=_let_go, after_in_child=_close_in_child)
