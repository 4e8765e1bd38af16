"""Which step is worth recording once more: one that has what no compared one has shown, or that casts before a call."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ampcheck.observe.reference.given import GIVEN
from ampcheck.observe.script.recording import Recorded

#: Of a parameter's gradient, what is newly zero where a step makes the next one worth comparing.
MORE_ZEROS = 0.1


def strange(done: Recorded, recorded: list[Recorded]) -> bool:
    """Tell whether a step has what no step that FP32 ran beside has shown."""
    full = [one for one in recorded if one.beside is not None]
    known = {module.path for one in full for module in one.low.modules}
    fresh = any(module.path not in known for module in done.low.modules)
    other = all(one.precision != done.precision for one in full)
    calm = all(one.overflowed for one in full)  # the scale has settled since
    return done.overflowed or fresh or other or calm or _fewer_arrive(done, full)


def _fewer_arrive(done: Recorded, full: list[Recorded]) -> bool:
    """Tell whether far more of a parameter's gradient is zero than it was in any of some steps."""
    most: dict[str, float] = {}
    for recorded in full:
        for name, share in _zeros(recorded):
            most[name] = max(most.get(name, 0.0), share)
    return any(share > most[name] + MORE_ZEROS for name, share in _zeros(done) if name in most)


def _zeros(recorded: Recorded) -> Iterator[tuple[str, float]]:
    """Yield by parameter which share of its gradient is zero."""
    for site, stats in recorded.low.sites.items():
        if site.slot.startswith("param_grad[") and stats.numel:
            yield f"{site.module}.{site.slot}", stats.zeros / stats.numel

#: Steps that are compared one after another where numbers in half precision are carried through them.
IN_A_ROW = 16


class CastsBefore:
    """Lets recordings begin with the step, once, and from then on where that shows what was cast."""

    def __init__(self) -> None:
        self._tried = self._trying = False

    def again(self, tape: Any, done: Recorded) -> bool:
        """Have the next step recorded from its beginning, and tell whether it will be.

        That is where numbers in half precision were given to this one, and where threads have made some for it.
        """
        given = _given(done)
        if self._trying and not given:  # it has shown the casts: what they cost is in this step
            tape.recorded = [_without_given(one) for one in tape.recorded]
            return False
        if self._trying:  # they are older than that
            self._trying = tape.before_calls = False
        if not (given or done.entered or tape.workers.heard) or tape.what_if is not None:
            return False
        if self._tried or tape.before_calls:
            return False
        self._tried = self._trying = True
        tape.unheard(done.last + 1)
        return True


class CarriedOn:
    """Lets some steps in a row be compared where one was given numbers in half precision by the step before it."""

    def __init__(self) -> None:
        self._first = self.next = -1  #: the first step of those in a row, and the one that goes on next
        self._carried: Any = None
        self._known = False  #: all that is given has been followed before

    def takes(self, step: int) -> Any:
        """Return what a step is to begin with, None where it is not the next one."""
        return self._carried if step == self.next else None

    def again(self, tape: Any, done: Recorded, carried: Any) -> bool:
        """Have the next step compared as well, and tell whether it will be."""
        goes_on, given = done.step == self.next, _given(done)
        self.next, self._carried = -1, None
        if goes_on and not given:
            self._known = True
        if self._known:
            tape.recorded = [_without_given(one) for one in tape.recorded]
        if carried is None or (goes_on and given):  # they are of no step
            return False
        if not goes_on:
            self._first = done.step
        if done.last + 1 - self._first >= IN_A_ROW:
            return False
        self.next, self._carried = done.last + 1, carried
        return True


class EarlyLook:
    """Lets a recording begin with the step where a script has kept numbers in half precision for some time.

    It may compute with them before it calls a module. That is looked at ever more rarely.
    """

    def __init__(self) -> None:
        self.step = -1  #: the last one to be recorded so
        self.kept: Callable[[], bool] = lambda: False  #: the script keeps such numbers
        self.followed: Callable[[], bool] = lambda: False  #: they are followed in FP32 at the moment

    def at(self, step: int) -> bool:
        """Tell whether a step is recorded from its beginning."""
        return step == self.step and not self.followed()

    def due(self, done: Recorded, every: int) -> bool:
        """Tell whether it is time for another one, after a step that is done."""
        due = done.step >= max(every, 4 * self.step) > 0 and self.kept()
        if due:
            self.step = done.last + 2  # right after a recorded step, scripts validate
        return due

    def done(self, done: Recorded) -> Recorded:
        """Return a step as it is to be judged: what is kept is followed from step to step, by itself."""
        return _without_given(done) if done.step == self.step else done


def _given(done: Recorded) -> bool:
    return any(what.endswith(GIVEN) for what in done.low.not_audited)


def _without_given(done: Recorded) -> Recorded:
    """Return a step that no longer names the numbers given to it: another step shows what their cast costs."""
    seen = {what: count for what, count in done.low.not_audited.items() if not what.endswith(GIVEN)}
    return replace(done, low=replace(done.low, not_audited=seen))
