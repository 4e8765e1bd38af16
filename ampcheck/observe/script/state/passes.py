"""Passes over data without a step, in which a script computes gradients only to measure something by them."""

from typing import Protocol

#: Steps from which on it is known how many backwards there are in one.
_FEW = 4


class Follower(Protocol):
    """What follows numbers through a pass."""

    def pass_begins(self) -> None:
        """Remember what there is."""

    def pass_goes_on(self, nth: int) -> None:
        """Follow what was written since the backward before, the `nth` since it began."""


class Passes:
    """Counts backwards that no step follows."""

    def __init__(self) -> None:
        self._backwards = self._steps = 0
        self._usual = 1  #: backwards in a step

    @property
    def _nth(self) -> int:
        """Return how many backwards a pass has had since it was one."""
        return self._backwards - self._usual - _FEW

    def goes_on(self, follower: Follower) -> None:
        """Count a backward, and have the follower know of a pass."""
        self._backwards += 1
        if self._nth == 0:
            follower.pass_begins()
        elif self._nth > 0:
            follower.pass_goes_on(self._nth)

    def ends(self) -> bool:
        """Count a step, and tell whether it ends a pass."""
        ended, self._steps = self._nth > 0, self._steps + 1
        if self._steps <= _FEW:
            self._usual = max(self._usual, self._backwards)
        self._backwards = 0
        return ended
