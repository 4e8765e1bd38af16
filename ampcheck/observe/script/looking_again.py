"""Which step is worth recording once more: one that has what no compared one has shown, or that casts before a call."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ampcheck.observe.dtypes import DTYPES
from ampcheck.observe.script.recorded import Recorded
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.rows_carried import CarriedOn, given_half, without_given
from ampcheck.observe.script.second_run import Look
from ampcheck.observe.statistics.memory import half_leaves, readable
from ampcheck.observe.statistics.units import GRIDS, is_grid
from ampcheck.observe.unusual import in_memory
from ampcheck.values.parts import off_by_itself

#: Of a parameter's gradient, what is newly zero where a step makes the next one worth comparing.
MORE_ZEROS = 0.1


def strange(done: Recorded, recorded: list[Recorded]) -> bool:
    """Tell whether a step has what no step of its precision that FP32 ran beside has shown."""
    full = [one for one in _alike(done, recorded) if one.beside is not None]
    known = {module.path for one in full for module in one.low.modules}
    fresh = any(module.path not in known for module in done.low.modules)
    calm = all(one.overflowed for one in full)  # the scale has settled since
    return done.overflowed or fresh or calm or _fewer_arrive(done, full)


def _alike(done: Recorded, recorded: list[Recorded]) -> list[Recorded]:
    """Return the steps of the same precision: what a script does in FP32 before tells nothing of those."""
    return [one for one in recorded if one.precision == done.precision]


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


#: Recorded steps that may all overflow before no other is looked for.
_TRIES = 4


def matches_reference(recorded: list[Recorded]) -> bool:
    """Tell whether all was as in FP32 so far, and nothing in half precision goes from step to step."""
    if not all(one.matches_reference for one in recorded if one.beside is not None):
        return False
    return not keeps_half()


def keeps_half() -> bool:
    """Tell whether a script keeps numbers in half precision that are no weights."""
    with unseen():
        kept = (tensor for tensor in half_leaves() if not isinstance(tensor, torch.nn.Parameter))
        return any(
            not readable(tensor) or (in_memory(tensor) and not is_grid(tensor, GRIDS[tensor.dtype]))
            for tensor in kept
        )


#: Looks at steps that overflow that are tried again.
_REPEATS = 4


class CloserLook:
    """The next step to be recorded in full whatever the schedule says, and what a second run beside it tries."""

    def __init__(self) -> None:
        self.step = -1  #: -1 for none
        self._tried: list[Look] = []  #: and the one to try
        self._precision = torch.float16  #: of the step that asked for it
        self._repeats = _REPEATS
        self.spared = ""  #: the module whose weights a look does not round

    def due(self, step: int) -> bool:
        """Tell whether it is time: several optimizers may have taken some steps more in between."""
        return 0 <= self.step <= step

    def done(self, step: int) -> None:
        """Take note of a step that has been looked at."""
        if self.due(step):
            self.step = -1

    def second(self, step: int) -> tuple[Look, torch.dtype] | None:
        """Return what a second run beside a step is to try, and the precision of that; None for no such run."""
        return (self._tried[-1], self._precision) if self._tried and self.due(step) else None

    def spares(self, second: tuple[Look, torch.dtype] | None) -> str:
        """Return the module whose weights such a run does not round."""
        return self.spared if second is not None and second[0] is Look.SPARED else ""

    def tries(self, done: Recorded, look: Look | None) -> bool:
        """Have a look tried in the step after one that is done, and tell whether there is one to try."""
        precision = DTYPES.get(done.precision)
        if look is None or precision is None:
            return False
        self._tried.append(look)
        self.step, self._precision = done.last + 1, precision
        return True

    def repeats(self, done: Recorded) -> bool:
        """Have the look of a step that overflowed, which tells nothing, tried once more; tell whether it will be."""
        look = done.beside.look if done.beside is not None else None
        if look is None or not done.overflowed or not self._repeats:
            return False
        self._repeats -= 1
        return self.tries(done, look)

    def tries_once(self, done: Recorded, look: Look) -> None:
        """Have a look tried if it was not."""
        if look not in self._tried:
            self.tries(done, look)

    def wanted(self, done: Recorded) -> Look | None:
        """Return what a step raises doubts about, None for nothing that was not tried."""
        raised = {
            Look.ROUNDED: done.far_off,
            Look.MOVED: given_half(done),
            Look.PICKED: done.beside is not None and bool(done.beside.picks),
        }
        if (module := done.magnified_by) and Look.SPARED not in self._tried:
            self.spared = module
            return Look.SPARED
        return next((look for look, doubted in raised.items() if doubted and look not in self._tried), None)


class CastsBefore:
    """Lets recordings begin with the step, once, and from then on where that shows what was cast."""

    def __init__(self) -> None:
        self._tried = self._guessed = self._trying = False

    def again(self, tape: Any, done: Recorded, *, works: bool) -> bool:
        """Have the next step recorded from its beginning, and tell whether it will be.

        That is where numbers in half precision were given to this one, or some that make FP32's loss infinite, and
        where threads have made some for it. And once where the script has computed some before: a step may leave
        nothing of them but integers. `works` says that this one has, before its first call.
        """
        given = given_half(done)
        if (
            self._trying and not given and (works or self._tried)
        ):  # it has shown the casts: what they cost is in it
            tape.recorded = [without_given(one) for one in tape.recorded]
            return False
        if self._trying:  # they are older than that
            self._trying = tape.before_calls = False
        asks = given or done.entered or done.brought or tape.workers.heard
        if not (asks or tape.workers.preparation.heard) or tape.what_if is not None:
            return False
        if (self._tried if asks else self._guessed) or tape.before_calls:
            return False
        self._tried, self._guessed, self._trying = self._tried or asks, True, True
        tape.unheard(done.last + 1)
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


class Looks:
    """Finds out which step is worth recording in full after one that is done."""

    def __init__(self) -> None:
        self.missed = -1  #: a step to record from its beginning, unless calls tell of it
        self.early, self.carried, self.closer = EarlyLook(), CarriedOn(), CloserLook()
        self._casts_before = CastsBefore()
        #: A step that looks closer at one which began before its calls, or may have had to.
        self._early_too = -1
        self.keeps_half = False  #: the script keeps numbers in half precision

    def carries(self, recorded: list[Recorded]) -> bool:
        """Tell whether what is there when the next step ends is kept, whatever reads it."""
        return not recorded or self.carried.begins_again

    def is_early(self, step: int) -> bool:
        """Tell whether a step is recorded from where it begins, whatever its calls tell."""
        return step == self._early_too or self.early.at(step)

    def again(self, tape: Any, done: Recorded, recording: Any) -> None:
        """Look again, if there is a reason."""
        with unseen():
            self._again(tape, done, recording)
        # What a script keeps it may read before a call.
        self.keeps_half = keeps_half() if len(tape.recorded) == 1 else self.keeps_half
        early = recording.before_calls or self.keeps_half
        self._early_too = max(self.closer.step, done.last + 1) if early else -1

    def delivered(self, tape: Any, done: Recorded) -> None:
        """Look again where an optimizer is given something far from FP32's gradients."""
        given = done.beside.delivery if done.beside is not None else None
        if given is not None and off_by_itself(given.rows) and tape.schedule.steps is None:
            self.closer.tries_once(done, Look.ROUNDED)

    def _again(self, tape: Any, done: Recorded, recording: Any) -> None:
        looks = tape.what_if is None and tape.schedule.steps is None
        if not done.whole:
            self.closer.step = self.missed = done.last + 1
        elif self._casts_before.again(tape, done, works=recording.works):
            return
        elif looks and self.carried.again(tape, done, recording.carried):
            self.closer.tries(done, Look.ROUNDED)
        elif looks and self.closer.repeats(done):
            return
        elif done.beside is None and self._is_new(tape, done):
            self.closer.step = done.step + tape.in_turn
        elif len(alike := _alike(done, tape.recorded)) <= _TRIES and all(one.overflowed for one in alike):
            tape.look_at(done.last + 2 ** len(alike))  # the scale may still come to rest
        elif not looks or self.closer.tries(done, self.closer.wanted(tape.recorded[-1])):
            return
        elif self.early.due(done, tape.schedule.every):
            tape.look_at(self.early.step)

    def _is_new(self, tape: Any, done: Recorded) -> bool:
        """Tell whether a step that was not compared has what no compared one has shown."""
        new = strange(done, tape.recorded) or self._may_read_half(tape, done)
        return new or self.carried.grows_out(done.step)

    def _may_read_half(self, tape: Any, done: Recorded) -> bool:
        """Tell, ever more rarely, whether a script keeps numbers in half precision: it may have made them of late."""
        turn = tape.schedule.every * tape.in_turn
        if turn and (done.step // turn).bit_count() == 1:
            self.keeps_half = keeps_half()
            return self.keeps_half
        return False
