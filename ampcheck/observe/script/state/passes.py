"""Passes over data without a step, in which a script only measures something."""

from typing import Protocol

#: So many more than in a step make a pass; and so many steps show how many there are in one.
_FEW = 4
#: Backwards without a step that are many, unless a step adds up more.
_MANY = 16


class Follower(Protocol):
    """What follows numbers through a pass."""

    def pass_begins(self) -> None:
        """Remember what there is."""

    def pass_goes_on(self, nth: int) -> None:
        """Follow what was written meanwhile, for the `nth` time."""


class Passes:
    """Backwards since the last step, and regions of autocast since the last backward: they are counted in every step.

    So that costs no call.
    """

    def __init__(self) -> None:
        self.backwards = self.regions = self._steps = 0
        self.begins = 1 + _FEW  #: as many make a pass
        self.many = _MANY  #: more than any step adds up

    def goes_on(self, count: int, follower: Follower) -> None:
        """Have a follower know of a pass that has had so many."""
        if count == self.begins:
            follower.pass_begins()
        else:
            follower.pass_goes_on(count - self.begins)

    def step_ends(self) -> None:
        """Begin to count anew."""
        self._steps += 1
        if self._steps <= _FEW:
            self.begins = max(self.begins, self.backwards + _FEW, self.regions + _FEW)
            self.many = max(self.many, self.backwards + 1)
        self.backwards = self.regions = 0
