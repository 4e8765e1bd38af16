"""Passes over data without a step, in which a script only measures something."""

from typing import Protocol

#: So many of what ends a pass show what is usual before that.
_FEW = 4


class Follower(Protocol):
    """What follows numbers through a pass."""

    def pass_begins(self) -> None:
        """Remember what there is."""

    def pass_goes_on(self, nth: int) -> None:
        """Follow what was written meanwhile, for the `nth` time."""


class Passes:
    """Counts backwards that no step follows, or regions of autocast that no backward follows."""

    def __init__(self) -> None:
        self._count = self._ended = 0
        self._usual = 1  #: so many come before a step, or a backward

    def goes_on(self, follower: Follower) -> None:
        """Count one more, and have the follower know of a pass."""
        self._count += 1
        nth = self._count - self._usual - _FEW
        if nth == 0:
            follower.pass_begins()
        elif nth > 0:
            follower.pass_goes_on(nth)

    def ends(self) -> None:
        """Take note of what ends a pass."""
        self._ended += 1
        if self._ended <= _FEW:
            self._usual = max(self._usual, self._count)
        self._count = 0
