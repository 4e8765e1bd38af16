"""What to expect of a scaler: how long it takes to settle, and how many steps it costs then."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ampcheck.diagnose.scaling.scaler import ScalerSettings, replay
from ampcheck.values.formats import Format

#: Steps over which the recorded maxima are repeated to see what a scaler does: five default growth intervals.
HORIZON = 10_000


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a scaler does while the gradients stay like the recorded ones."""

    steps: int  #: that were looked at
    skipped_at_start: int
    settling_step: int  #: from which on steps are skipped only because the scale has grown
    skipped_later: int
    #: from skip to skip once the scale has grown to where it overflows; 0.0: not reached
    steps_per_skip: float
    lossy: int  #: steps that are applied although the scale loses gradients
    final_scale: float

    @property
    def cost(self) -> float:
        """Return the share of all steps that teach nothing, or the wrong thing."""
        return (self.skipped_at_start + self.skipped_later + self.lossy) / self.steps if self.steps else 0.0

    @property
    def message(self) -> str:
        """Return what is normal, for people.

        >>> Outlook(10_000, 7, 7, 3, 2001.0, 0, 512.0).message
        '7 skips at the start, then one every 2,000 steps when GradScaler tries a larger scale, are normal'
        """
        start = f"{_skips(self.skipped_at_start)} at the start, then " if self.skipped_at_start else ""
        if self.steps_per_skip:
            often = f"every {_rounded(self.steps_per_skip)} steps"
            tries = "when GradScaler tries a larger scale"
            return (
                f"{start}one {often} {tries}, are normal" if start else f"one skip {often} {tries} is normal"
            )
        ahead = f"in the {'next' if start else 'first'} {_rounded(self.steps - self.settling_step)} steps"
        later = _skips(self.skipped_later) if self.skipped_later else "no skip"
        return f"{start}{later} {ahead}{', are' if start else ' are' if self.skipped_later > 1 else ' is'} normal"


def _skips(count: int) -> str:
    return "1 skip" if count == 1 else f"{count} skips"


def _rounded(number: float) -> str:
    """Return a number with two significant digits, with commas."""
    digits = max(len(str(round(number))) - 2, 0)
    return f"{round(number, -digits):,.0f}"


def outlook(settings: ScalerSettings, maxima: Sequence[float], lost_below: int, fmt: Format) -> Outlook:
    """Return what a scaler does on steps with these maxima when gradients underflow below a log2 scale."""
    run = replay(settings, maxima, fmt)
    settled, lowest = run.settling_step, 2.0**lost_below
    later = [index for index, step in enumerate(run.steps) if step.skipped and index >= settled]
    gaps = [after - before for before, after in pairwise(later)]
    return Outlook(
        steps=len(run.steps),
        skipped_at_start=run.skipped_at_start,
        settling_step=settled,
        skipped_later=len(later),
        steps_per_skip=sum(gaps) / len(gaps) if gaps else 0.0,
        lossy=sum(not step.skipped and step.scale < lowest for step in run.steps),
        final_scale=run.final_scale,
    )
