"""One place in FP32 instead of a loss scale, where only that place depends on the scale."""

from collections.abc import Iterable
from dataclasses import dataclass

from ampcheck.diagnose.rules.gradients import MANY_SKIPS
from ampcheck.diagnose.rules.scales_tried import overflowing
from ampcheck.diagnose.suspects import Suspect
from ampcheck.fix.smallest import smaller_part
from ampcheck.fix.trials import Trials
from ampcheck.values.outcome import HARM_UNDERFLOW, Outcome
from ampcheck.values.plan import DEFAULT_LOG2_SCALE, Claim, Tried
from ampcheck.values.report import Report

#: Share of the gradient that may be lost without a scale where the loss is still called that of one place:
#: beyond it the model as a whole needs the scale.
_LOCAL_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class ScaleOrPlace:
    """A place whose promotion makes the scale not matter, and the run that has shown it."""

    place: Suspect
    before: Outcome
    after: Outcome

    @property
    def verdict(self) -> Claim:
        """Return what was claimed and tried."""
        scale = "without a loss scale" if not self.after.log2_scale else f"at 2^{self.after.log2_scale}"
        claim = f"keep {self.place.name} in FP32, and the step is healthy {scale} too"
        return Claim(claim, Tried.CONFIRMED, self.before.words, self.after.words)

    @property
    def words(self) -> str:
        """Return how it goes together with the scale, in a sentence."""
        return (
            f"either is enough by itself: the loss scale, or {self.place.name} in FP32; with both the step is healthy "
            "at any scale GradScaler moves to"
        )


def place_for_a_scale(report: Report, trials: Trials) -> ScaleOrPlace | None:
    """Return the place that alone depends on the loss scale, if there is one and FP32 there heals."""
    settled, unscaled = report.outcomes["settled"], report.outcomes.get("unscaled")
    if unscaled is None or report.stand_in_loss:
        return None
    if unscaled.finite and HARM_UNDERFLOW < unscaled.underflow <= _LOCAL_SHARE:
        return _first(report, trials, _losing(unscaled), unscaled)
    if len(report.refused_scales) >= MANY_SKIPS and not settled.harmed:
        over = overflowing(report, min(report.refused_scales))
        places = [Suspect(module=site.module) for site in over[:1] if site.module]
        before = trials.attempt(DEFAULT_LOG2_SCALE)
        return _first(report, trials, places, before) if before.grads_nonfinite else None
    return None


def _first(report: Report, trials: Trials, places: Iterable[Suspect], before: Outcome) -> ScaleOrPlace | None:
    """Return the first of the places that heals and is the smaller part of what runs in low precision."""
    for place in places:
        if not smaller_part(report, (place,)):
            break
        after = trials.attempt(before.log2_scale, [place])
        if not after.harmed and max(after.underflow_by.values(), default=0.0) <= HARM_UNDERFLOW:
            return ScaleOrPlace(place, before, after)
    return None


def _losing(outcome: Outcome) -> list[Suspect]:
    """Return the module that holds all parameters with lost gradients, and those around it but the root."""
    lost = [name.split(".")[:-1] for name, share in outcome.underflow_by.items() if share > HARM_UNDERFLOW]
    shared = []
    for level in zip(*lost, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return [Suspect(module=".".join(shared[:depth])) for depth in range(len(shared), 0, -1)]
