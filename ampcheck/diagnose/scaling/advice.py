"""Which GradScaler to build, and what to expect of it and of torch's defaults."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Generic

from ampcheck.diagnose.scaling.outlook import HORIZON, Outlook, outlook
from ampcheck.diagnose.scaling.rounding import LOG2_SCALES, Key, combined_error, relevant
from ampcheck.diagnose.scaling.scaler import TORCH_DEFAULTS, ScalerSettings
from ampcheck.diagnose.scaling.window import ScaleWindow, scale_window
from ampcheck.values.formats import Format
from ampcheck.values.plan import DEFAULT_LOG2_SCALE
from ampcheck.values.stats import TensorStats

#: Error, relative to that at the best scale, up to which two scales are equally good.
AS_GOOD = 1.01
#: How much larger than in FP32 the largest gradient of the same step may be in low precision, which rounds
#: all of the forward and the backward before it.
_DRIFT = 1.25
#: Octaves to stay below overflow: the largest gradient of a step easily varies by a factor of four.
_HEADROOM = 2
#: Recorded steps below which one octave more is left, and two after a single step.
_MANY_STEPS = 8
#: Octaves to stay above loss, where there is room: gradients become smaller as a model learns.
_FOOTROOM = 2
#: Growth intervals that are tried, torch's first; short ones find back sooner after rare spikes.
_INTERVALS = (2000, 1000, 500, 200, 100)
#: Share of the steps that must be gained before another growth interval than torch's is advised.
_WORTH_A_CHANGE = 0.005


@dataclass(frozen=True, slots=True)
class ScaleAdvice(Generic[Key]):
    """The GradScaler to build, and what speaks for it."""

    settings: ScalerSettings
    log2_scale: int  #: of the advised init_scale
    window: ScaleWindow[Key]
    headroom: int  #: octaves between the advised scale and the first that overflows
    error: float  #: estimated relative error of the gradients at the advised scale
    best_error: float  #: the same at the best scale
    default_error: float  #: the same at torch's initial scale; inf: it overflows
    unscaled_error: float  #: the same without a scaler
    advised: Outlook
    default: Outlook

    @property
    def needed(self) -> bool:
        """Tell whether gradients underflow or become subnormal without a scaler."""
        return not self.unscaled_error <= self.best_error * AS_GOOD

    @property
    def message(self) -> str:
        """Return the advice in a sentence or two."""
        if not self.window.fits:
            return f"{self.window.message}; at 2^{self.log2_scale} the fewest of them underflow"
        made = f"GradScaler(init_scale=2.0**{self.log2_scale})"
        return f"{made}: {self.window.message}; {self.advised.message}"


def advise_scale(
    tensors: Mapping[Key, TensorStats],
    maxima: Sequence[float],
    fmt: Format,
    refused: Sequence[int] = (),
) -> ScaleAdvice[Key]:
    """Return the scaler that suits tensors, given without a scale, and the largest magnitude of each step.

    `refused` are log2 of scales at which a step was run and overflowed.
    """
    window = scale_window(tensors, fmt)
    if refused:  # lies below all scales that have been seen to overflow
        window = replace(window, high=min(window.high, min(refused) - 1))
    live = relevant(tensors)
    best = min(max(_top(live, fmt, window.high), LOG2_SCALES[0]), LOG2_SCALES[-1])
    errors = {k: combined_error(live.values(), fmt, k) for k in LOG2_SCALES}
    lowest = next((k for k in LOG2_SCALES if errors[k] <= errors[best] * AS_GOOD), best)
    chosen = _placed(min(lowest, best), best, window.high, _headroom(maxima))
    steps = _repeated(maxima, live, _seen(refused, fmt))
    foreseen = cache(partial(outlook, maxima=steps, lost_below=window.low, fmt=fmt))
    settings = _settings(chosen, foreseen)
    return ScaleAdvice(
        settings,
        chosen,
        window,
        headroom=window.high + 1 - chosen,
        error=errors[chosen],
        best_error=errors[best],
        default_error=errors[DEFAULT_LOG2_SCALE],
        unscaled_error=errors[0],
        advised=foreseen(settings),
        default=foreseen(TORCH_DEFAULTS),
    )


def _top(tensors: Mapping[Key, TensorStats], fmt: Format, high: int) -> int:
    """Return the largest log2 scale that leaves room for what low precision adds to the largest element."""
    amax = max((stats.amax for stats in tensors.values()), default=0.0)
    return high - 1 if fmt.overflows(amax * _DRIFT * 2.0**high) else high


def _headroom(maxima: Sequence[float]) -> int:
    """Return how many octaves to stay below overflow: more after few steps, and where steps have differed."""
    known = sorted(amax for amax in maxima if math.isfinite(amax) and amax)
    seen = math.ceil(math.log2(known[-1] / known[len(known) // 2])) if known else 0
    return max(_HEADROOM, seen) + (len(known) < _MANY_STEPS) + (len(known) <= 1)


def _placed(lowest: int, best: int, high: int, headroom: int) -> int:
    """Return the scale between the limits nearest to torch's that, if it can, leaves room on both sides."""
    top = max(min(high + 1 - headroom, best), lowest)
    bottom = min(lowest + _FOOTROOM, top)
    return min(max(DEFAULT_LOG2_SCALE, bottom), top)


def _seen(refused: Sequence[int], fmt: Format) -> float:
    """Return the magnitude that some gradient must have had to overflow at the scales that did."""
    return fmt.overflow_from * 2.0 ** -min(refused) if refused else 0.0


def _repeated(maxima: Sequence[float], tensors: Mapping[Key, TensorStats], seen: float) -> list[float]:
    """Return maxima for the whole horizon; the tensors' own largest element stands in for unknown ones."""
    amax = max((stats.amax for stats in tensors.values()), default=0.0)
    known = [value for value in maxima if math.isfinite(value)] or [amax]
    known[known.index(max(known))] = max(*known, seen)
    return [known[index % len(known)] for index in range(HORIZON)]


def _settings(chosen: int, foreseen: Callable[[ScalerSettings], Outlook]) -> ScalerSettings:
    """Return settings with the growth interval that wastes the fewest steps.

    The factors stay powers of two: with these a change of scale moves exponents and rounds nothing anew.
    """
    base = replace(TORCH_DEFAULTS, init_scale=2.0**chosen)
    if foreseen(base).cost <= _WORTH_A_CHANGE:
        return base
    tried = [replace(base, growth_interval=interval) for interval in _INTERVALS]
    costs = [foreseen(settings).cost for settings in tried]
    best = min(range(len(tried)), key=costs.__getitem__)
    return tried[best] if costs[best] < costs[0] - _WORTH_A_CHANGE else tried[0]
