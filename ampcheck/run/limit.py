"""How far a script is audited: so many steps or so many seconds, whichever comes first."""

import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

#: A script that has not stepped by then is given so many times the seconds before it is stopped.
PATIENCE = 5
#: Seconds without a word, and then between two lines that say how far the script is.
QUIET, EVERY = 3.0, 10.0


class AuditOver(SystemExit):
    """Ends a script that was seen for long enough, as `sys.exit()` would: what it leaves open it can still close."""

    def __init__(self) -> None:
        super().__init__(0)


class Limit:
    """So many steps of each optimizer, and so many seconds, which run from now on."""

    def __init__(self, steps: int, seconds: float) -> None:
        """Begin to count; the clock can only ring in the main thread of a system that has an alarm."""
        self._most, self._seconds, self._begun = steps, seconds, time.monotonic()
        self._steps = 0
        self._speaks = self._begun + QUIET
        self._first: tuple[float, float] | None = None  #: the first step that was seen to end, and when
        self.reached = ""  #: why the script was stopped; '' for one that was not
        self._rings = (
            threading.current_thread() is threading.main_thread()
            and hasattr(signal, "setitimer")
            and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        )
        if self._rings:
            signal.signal(signal.SIGALRM, self._ring)
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def end(self) -> None:
        """Let the clock ring no more."""
        if self._rings:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            self._rings = False

    def stepped(self, watcher: Any) -> None:
        """Stop the script if a step was the last one; the one after it has shown how that ended."""
        self._steps = watcher.steps
        if self._steps > self._most * watcher.tape.in_turn:
            self._stop(f"{self._most} steps")
        if time.monotonic() - self._begun > self._seconds:
            self._stop(f"{self._seconds:g} s")
        self._say(self._steps / watcher.tape.in_turn)

    def _say(self, steps: float) -> None:
        """Say now and then how far the script is, and how long the rest takes at the pace since its first step."""
        now = time.monotonic()
        self._first = self._first or (steps, now)
        done, since = steps - self._first[0], now - self._first[1]
        if now < self._speaks or done < 1:
            return
        self._speaks = now + EVERY
        left = min(since / done * (self._most - steps), self._seconds - (now - self._begun))
        said = f"ampcheck: step {steps:.0f} of {self._most}, about {max(left, 0):.0f} s left"
        sys.stderr.write(f"{said}\n")
        sys.stderr.flush()

    def _ring(self, _signal: int, _frame: FrameType | None) -> None:
        late = time.monotonic() - self._begun
        if self._steps or late > PATIENCE * self._seconds:
            self._stop(f"{late:.0f} s")
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def _stop(self, reached: str) -> None:
        self.reached = self.reached or reached
        raise AuditOver
