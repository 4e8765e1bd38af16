"""The loss scaler as a state machine: what torch.amp.GradScaler would have done, step for step."""

import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ampcheck.values.formats import FP32, Format
from ampcheck.values.plan import DEFAULT_SCALE

Seen = TypeVar("Seen")


def _as_fp32(value: float) -> float:
    """Return a double rounded to FP32, where GradScaler keeps its scale."""
    if FP32.overflows(abs(value)):
        return math.copysign(math.inf, value)
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


@dataclass(frozen=True, slots=True)
class ScalerSettings:
    """The arguments of a GradScaler; the defaults are torch's."""

    init_scale: float = DEFAULT_SCALE
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True

    def __post_init__(self) -> None:
        """Refuse what GradScaler refuses, and scales that make every gradient zero or infinite."""
        if not 0.0 < _as_fp32(self.init_scale) < math.inf:
            raise ValueError(f"expected a positive, finite init_scale, got {self.init_scale!r}")
        if not self.growth_factor > 1.0:
            raise ValueError(f"expected a growth_factor above 1, got {self.growth_factor!r}")
        if not 0.0 < self.backoff_factor < 1.0:
            raise ValueError(f"expected a backoff_factor between 0 and 1, got {self.backoff_factor!r}")
        if self.growth_interval < 1:
            raise ValueError(f"expected a growth_interval of at least 1, got {self.growth_interval!r}")


#: What GradScaler does when nothing is said.
TORCH_DEFAULTS = ScalerSettings()


class ScalerStep(NamedTuple):
    """What the scaler did in one step."""

    scale: float  #: the loss was multiplied by this
    skipped: bool  #: the optimizer was not called, because a gradient was inf or NaN
    growth_tracker: int  #: steps without a skip since the scale last changed, this one included


@dataclass(frozen=True, slots=True)
class ScalerRun:
    """What the scaler did in all steps."""

    steps: tuple[ScalerStep, ...]
    final_scale: float

    @property
    def skipped(self) -> int:
        """Return how many steps were skipped."""
        return sum(step.skipped for step in self.steps)

    @property
    def settling_step(self) -> int:
        """Return the first step, from 0 on, after the skips that come before the scale first grows."""
        settled, before = 0, math.inf
        for index, step in enumerate(self.steps):
            if step.scale > before:
                break
            if step.skipped:
                settled = index + 1
            before = step.scale
        return settled

    @property
    def skipped_at_start(self) -> int:
        """Return how many steps were skipped before the settling step."""
        return sum(step.skipped for step in self.steps[: self.settling_step])


def simulate(settings: ScalerSettings, found_inf: Iterable[bool]) -> ScalerRun:
    """Return what a GradScaler does when the gradients of the steps are, or are not, infinite.

    >>> run = simulate(ScalerSettings(init_scale=8.0, growth_interval=2), [True, False, False, False])
    >>> [step.scale for step in run.steps], run.final_scale
    ([8.0, 4.0, 4.0, 8.0], 8.0)
    """
    return _run(settings, found_inf, lambda found, _: found)


def replay(settings: ScalerSettings, maxima: Iterable[float], fmt: Format) -> ScalerRun:
    """Return what a GradScaler does when each step's gradients reach these magnitudes before scaling."""
    limit = fmt.overflow_from  # what is smaller fits, and NaN is not smaller
    return _run(
        settings, maxima, lambda amax, scale: not amax * scale < limit and _overflows(fmt, amax * scale)
    )


def _overflows(fmt: Format, magnitude: float) -> bool:
    return not math.isfinite(magnitude) or fmt.overflows(magnitude)


def _run(
    settings: ScalerSettings, seen: Iterable[Seen], found_inf: Callable[[Seen, float], bool]
) -> ScalerRun:
    if not settings.enabled:
        # A disabled scaler multiplies by nothing and lets every step through.
        return ScalerRun(tuple(ScalerStep(1.0, skipped=False, growth_tracker=0) for _ in seen), 1.0)
    scale, tracker = _as_fp32(settings.init_scale), 0
    steps = []
    for evidence in seen:
        used, skipped = scale, found_inf(evidence, scale)
        if skipped:
            scale, tracker = _as_fp32(scale * settings.backoff_factor), 0
        else:
            tracker += 1
            if tracker == settings.growth_interval:
                scale, tracker = _grown(scale, settings.growth_factor), 0
        steps.append(ScalerStep(used, skipped, tracker))
    return ScalerRun(tuple(steps), scale)


def _grown(scale: float, factor: float) -> float:
    """Return the larger scale, or the same one where that would be inf, as torch does."""
    larger = _as_fp32(scale * factor)
    return larger if math.isfinite(larger) else scale
