"""Steps in a row that are compared where FP32 goes on from its own numbers, as a script does from half precision."""

from dataclasses import replace
from math import fsum, inf, isfinite
from typing import Any

from ampcheck.observe.reference.given import GIVEN
from ampcheck.observe.script.recorded import Recorded
from ampcheck.observe.script.state.carried import Numbers, Paces, outgrown, paces, stands_still
from ampcheck.values.trace import UpdateLoss

#: Steps that are compared one after another where numbers in half precision are carried through them.
IN_A_ROW = 16
#: How many times as many steps the script must have taken before that is done again.
LATER = 3
#: Smaller changes are rounded away: what comes to that is compared again at once.
HALF_A_UNIT = 0.5
#: How many times as large a unit in the last place must be before that is done again, too.
COARSER = 4.0
#: How much larger, as a part of FP32's, losses have to be in such a row.
_WORSE = 0.25


class CarriedOn:
    """Lets some steps in a row be compared where one was given numbers in half precision by the step before it."""

    def __init__(self) -> None:
        self._begun = self._next = -1  #: the first step of those in a row, and the one that goes on next
        self._not_before = 0  #: the step from which on others may follow each other
        self._carried: Any = None
        self._known = False  #: all that is given has been followed before
        self._given = False  #: the first of them was given some that FP32 does not know
        self._asked = False  #: the first of them has a reason to be followed
        self._first: Numbers = {}
        self.still: dict[str, UpdateLoss | None] = {}  #: what stood still while FP32 moved on, judged or not
        self._paces: Paces = {}  #: what moved on
        #: Something has grown since: the next step that is compared begins another row.
        self.begins_again = False
        self._later: dict[int, int] = {}  #: by first step of such a row, its last one

    @property
    def losses(self) -> tuple[UpdateLoss, ...]:
        """Return what has lost what FP32 has changed of it."""
        return tuple(filter(None, self.still.values()))

    def outgrown(self) -> list[str]:
        """Return what has grown since it was compared, so that its changes may be lost by now."""
        return [name for name in outgrown(self._paces) if name not in self.still]

    def grows_out(self, step: int) -> bool:
        """Tell whether something has come to where changes of that size are rounded away, or later, are coarse."""
        self.begins_again = step >= self._not_before and bool(outgrown(self._paces, inf, COARSER))
        return self.begins_again or bool(outgrown(self._paces, HALF_A_UNIT))

    def worse_off(self, recorded: list[Recorded]) -> list[Recorded]:
        """Leave out later rows in which FP32, with its own numbers, has no smaller losses.

        A gradient that is small by then is off by rounding alone, and the script's own numbers do no harm.
        """
        for first, last in self._later.items():
            row = [one for one in recorded if first < one.step <= last and one.beside is not None]
            if not all(isfinite(loss) for one in row for loss in one.losses):
                continue
            low, wide = (fsum(one.losses[at] for one in row) for at in (0, 1))
            if low - wide <= _WORSE * abs(wide):
                recorded = [one for one in recorded if not first < one.step <= last]
        return recorded

    def takes(self, step: int) -> Any:
        """Return what a step is to begin with, None where it is not the next one."""
        return self._carried if step == self._next else None

    def again(self, tape: Any, done: Recorded, carried: Any) -> bool:
        """Have the next step compared as well, and tell whether it will be."""
        goes_on, given = done.step == self._next, given_half(done)
        self._next, self._carried = -1, None
        begins, self.begins_again = self.begins_again, False
        was_read = carried is not None and carried.was_read
        if goes_on and not given and (self._given or was_read):
            self._known = True
        if self._known:
            tape.recorded = [without_given(one) for one in tape.recorded]
        if not goes_on:
            self._begun, self._given, self._first = done.step, given, {}
            self._asked = carried is not None and carried.asked
        if begins or self._begun in self._later:
            self._later[self._begun] = done.last
        if carried and not self._first:
            self._first = carried.numbers()
        most = done.last + 1 - self._begun >= IN_A_ROW or len(tape.recorded) >= tape.schedule.most
        ends = (goes_on and given) or most  # the first: they are of no step
        if ends:
            self._not_before = LATER * done.last
            now: Numbers = carried.numbers() if carried else {}
            self.still |= stands_still(self._first, now, carried.shapes) if carried else {}
            self._paces = {**self._paces, **paces(self._first, now, done.last - self._begun)}
        unread = goes_on and not self._asked and not was_read
        if ends or unread or not carried:
            return False
        if done.step < self._not_before and not (begins or self.grows_out(done.step)):
            return False
        self._next, self._carried = done.last + 1, carried
        return goes_on or self._asked or begins


def given_half(done: Recorded) -> bool:
    """Tell whether a step was given numbers in half precision from before it."""
    return any(what.endswith(GIVEN) for what in done.low.not_audited)


def without_given(done: Recorded) -> Recorded:
    """Return a step that no longer names the numbers given to it: another step shows what their cast costs."""
    seen = {what: count for what, count in done.low.not_audited.items() if not what.endswith(GIVEN)}
    return replace(done, low=replace(done.low, not_audited=seen))
