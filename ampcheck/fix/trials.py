"""Runs of the audited step with places in FP32, at one scale or at whichever lets it."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ampcheck.diagnose.suspects import Suspect
from ampcheck.fix.verify import Lab
from ampcheck.observe.dtypes import DTYPES
from ampcheck.targets.nested import redrawn
from ampcheck.values.outcome import Outcome
from ampcheck.values.plan import DEFAULT_LOG2_SCALE
from ampcheck.values.trace import Trace

#: The scales at which sets are tried in fp16: far from both ends first, so that only the set decides; smaller
#: ones where gradients still overflow, as a scaler would.
_SEARCH_LOG2_SCALES = (8, 4, 0)
#: Runs of each kind that times are taken from, fewer where they take longer than the seconds.
_TIMED_ROUNDS = 3
_TIMED_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of steps that were run in turns, without and with places in FP32."""

    without: tuple[float, ...]
    kept: tuple[float, ...]

    @property
    def words(self) -> str:
        """Return the ratio, or that there is none to tell because the times of both kinds overlap."""
        runs = "one run each" if len(self.kept) == 1 else f"{len(self.kept)} runs each, in turns"
        apart = max(self.without) < min(self.kept) or max(self.kept) < min(self.without)
        if not apart or len(self.kept) == 1:
            return f"no difference measured here in the time of a step with the plan ({runs})"
        factor = median(self.kept) / median(self.without)
        return f"a step takes {factor:.2f} times as long with the plan (measured here, {runs})"


class Trials:
    """Tries changes to one step, in a lab and in one precision unless another is named."""

    def __init__(self, lab: Lab, precision: str) -> None:
        self._lab = lab
        self._precision = precision
        self._known: dict[tuple[int, tuple[Suspect, ...], str], Outcome] = {}

    def attempt(self, log2_scale: int, items: Iterable[Suspect] = (), precision: str = "") -> Outcome:
        """Return how the step comes out at a scale with these places in FP32; the same step is not run twice."""
        asked = (log2_scale, tuple(items), precision or self._precision)
        if asked not in self._known:
            self._known[asked] = self._run(*asked)
        return self._known[asked]

    def _run(self, log2_scale: int, chosen: Sequence[Suspect], precision: str) -> Outcome:
        modules, lines = _places(chosen)
        return self._lab.trial(DTYPES[precision], log2_scale, modules, lines)

    def recorded(self, items: tuple[Suspect, ...]) -> Trace | None:
        """Return the trace of the step with these places in FP32, at a scale that lets it; None where it raises."""
        scale = self.best(items).log2_scale
        modules, lines = _places(items)
        return self._lab.recorded(DTYPES[self._precision], scale, modules, lines)

    def best(self, items: Iterable[Suspect]) -> Outcome:
        """Return how the step comes out with these places in FP32, at a scale that lets it."""
        chosen = tuple(items)
        for scale in _SEARCH_LOG2_SCALES if self._precision == "fp16" else (0,):
            outcome = self.attempt(scale, chosen)
            if not outcome.grads_nonfinite or outcome.loss_nonfinite:
                break
        return outcome

    def settled(self, precision: str) -> Outcome:
        """Return how the step comes out where a scaler would settle in another precision."""
        if precision == "bf16":
            return self.attempt(0, precision=precision)
        for scale in range(DEFAULT_LOG2_SCALE, 0, -2):
            outcome = self.attempt(scale, precision=precision)
            if outcome.finite or outcome.loss_nonfinite or outcome.raised:
                return outcome
        return self.attempt(0, precision=precision)

    def rounded(self, precision: str = "") -> Outcome:
        """Return how FP32 comes out with its weights rounded to the precision, or to another one."""
        return self._lab.rounded(DTYPES[precision or self._precision])

    def heals_again(self, items: Sequence[Suspect], *, clearly: bool) -> bool:
        """Tell whether places in FP32 heal a second draw of the step too: what heals by chance does not.

        It has another batch, of the same samples drawn anew, and another rounding. Where nothing is ill on that batch,
        or none can be drawn, it has the step's own.

        `clearly` asks for a step that is ill there, and far worse without them.
        """
        drawn = redrawn(self._lab.step.batch)
        for batch in (None,) if drawn is None else (drawn, None):
            before, after = self._again(items, batch)
            if before is not None and before.harmed:
                return after.clearly_heals(before) if clearly else not after.harmed
        return not clearly

    def _again(self, items: Sequence[Suspect], batch: Any) -> tuple[Outcome | None, Outcome]:
        """Return how another draw comes out without and with places in FP32; on a batch that is None, on its own.

        None: it does not run on that batch, in FP32 neither.
        """
        try:
            with self._lab.redrawn(batch) as lab:
                other = Trials(lab, self._precision)
                return other.best(()), other.best(items)
        except Exception:  # the user's code may raise anything on samples drawn twice
            if batch is None:
                raise
            return None, Outcome(0)

    def timed(self, items: Sequence[Suspect], log2_scale: int) -> Times:
        """Return how long a step takes without and with these places in FP32, run in turns."""
        without: list[float] = []
        kept: list[float] = []
        begun = time.monotonic()
        while len(kept) < _TIMED_ROUNDS and time.monotonic() - begun < _TIMED_SECONDS:
            for seconds, places in (without, ()), (kept, items):
                self._run(log2_scale, places, self._precision)
                seconds.append(self._lab.seconds)
        return Times(tuple(without), tuple(kept))


def _places(chosen: Sequence[Suspect]) -> tuple[list[str], list[tuple[str, int]]]:
    """Return the modules, and the lines with their files."""
    lines = (item.line.rpartition(":") for item in chosen if item.line)
    return [item.module for item in chosen if item.module], [(file, int(line)) for file, _, line in lines]
