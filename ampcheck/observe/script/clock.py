"""How long a recorded step may take: no longer than so many steps that are not recorded."""

import time
from collections.abc import Callable
from typing import Any

#: Seconds that a recorded step may always take: the first one loads what all of them need.
FLOOR = 3.0
#: Operations after which the clock is looked at again.
_LOOKS = 64

_now = time.perf_counter


class Pace:
    """What a step takes that is not recorded."""

    def __init__(self) -> None:
        self.seconds = 0.0  #: of the last one, 0 where none is known yet
        self._began = 0.0

    def step_begins(self, *, bare: bool) -> None:
        """Take note of a step that begins; a bare one is not recorded."""
        self._began = _now() if bare else 0.0

    def step_ends(self) -> None:
        """Take note of the end of a step."""
        if self._began:
            self.seconds = _now() - self._began


class Clock:
    """Tells when a recorded step takes too long."""

    def __init__(self, bare: float = 0.0, times: float = 20.0) -> None:
        """Prepare to watch a step; a bare one takes so many seconds, 0 where that is not known yet."""
        self._bare, self._times = bare, times
        self._began = 0.0
        self._operations = 0
        self._theirs = 0.0  #: seconds in the script's own operations

    @property
    def shown(self) -> str:
        """Return why a step was abandoned."""
        return f"recorded steps abandoned: they took more than {self._times:g} times as long as others"

    def start(self) -> None:
        """Begin to count."""
        self._began = _now()

    def late(self) -> bool:
        """Count an operation; tell whether the step has taken too long, looking at the clock now and then."""
        self._operations += 1
        if self._operations % _LOOKS:
            return False
        taken = _now() - self._began
        # Before a bare step was seen, what the script's operations took is all that is known of one.
        return taken > max(FLOOR, self._times * (self._bare or self._theirs))

    def timed(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs an operation and counts the time that it takes."""

        def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            began = _now()
            out = execute(func, args, kwargs)
            self._theirs += _now() - began
            return out

        return run
