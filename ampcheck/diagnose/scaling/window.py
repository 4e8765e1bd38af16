"""The loss scales at which gradients neither overflow nor underflow, or what stands in their way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic

from ampcheck.diagnose.scaling.rounding import LOG2_SCALES, Key, lost_share, relevant, underflow_share
from ampcheck.values.formats import Format
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Site

#: Relative RMS error up to which a tensor counts as kept: far below what another minibatch would change. It
#: is an error of the energy: elements too small to carry any may go.
KEPT_ERROR = 0.05
#: Share of the elements that matter which may become zero in a tensor that counts as kept.
KEPT_UNDERFLOW = 0.05


@dataclass(frozen=True, slots=True)
class ScaleLimits(Generic[Key]):
    """Between which loss scales one tensor is safe."""

    key: Key  #: which tensor
    lost_below: int  #: log2 of the smallest scale that keeps it
    overflows_from: int  #: log2 of the smallest scale at which an element overflows


@dataclass(frozen=True, slots=True)
class ScaleWindow(Generic[Key]):
    """The log2 loss scales from low to high, both included, at which every tensor is safe.

    Empty where low is above high: no scale serves both `first_to_overflow` and `last_to_be_kept`.
    """

    low: int
    high: int
    first_to_overflow: ScaleLimits[Key] | None = None  #: None: none within the scales considered
    last_to_be_kept: ScaleLimits[Key] | None = None  #: None: all are kept at the smallest scale considered
    overflowing: tuple[
        ScaleLimits[Key], ...
    ] = ()  #: of an empty window: all that overflow at the scale `low`
    lost: tuple[ScaleLimits[Key], ...] = ()  #: of an empty window: all that are lost at the scale `high`

    @property
    def fits(self) -> bool:
        """Tell whether there is a scale at which every tensor is safe."""
        return self.low <= self.high

    @property
    def octaves(self) -> int:
        """Return how many powers of two fit; minus the number that is missing where none does."""
        return self.high - self.low + 1 if self.fits else self.high - self.low

    def __contains__(self, log2_scale: object) -> bool:
        """Tell whether every tensor is safe at 2**log2_scale."""
        return isinstance(log2_scale, int | float) and self.low <= log2_scale <= self.high

    @property
    def message(self) -> str:
        """Return the window, or why there is none, in a sentence."""
        if self.fits:
            return f"every gradient fits from loss scale 2^{self.low} to 2^{self.high}"
        over, kept = self.first_to_overflow, self.last_to_be_kept
        assert kept is not None, "a window that is empty has a lower limit"
        if over is None:
            return f"no loss scale fits, because {described(kept.key)} underflows even at 2^{self.high}"
        first = f"{described(over.key)} overflows from 2^{over.overflows_from} on"
        last = f"{described(kept.key)} underflows below 2^{kept.lost_below}"
        missing = _octaves(kept.lost_below - over.overflows_from + 1)
        return f"no loss scale fits, because {first} and {last}: {missing} too far apart"


def _octaves(count: int) -> str:
    return "1 octave" if count == 1 else f"{count} octaves"


def described(key: object) -> str:
    """Return a tensor's name for people."""
    if not isinstance(key, Site):
        return str(key)
    place = key.module or "the loss or the root module"
    line = f" ({key.location})" if key.location else ""
    return f"the gradient of {place}{line}"


def scale_window(tensors: Mapping[Key, TensorStats], fmt: Format) -> ScaleWindow[Key]:
    """Return the loss scales at which every one of the tensors, given without a scale, is safe in a format.

    Tensors with nothing to lose, as those that are all zero, are safe everywhere.
    """
    limits = [limits_of(key, stats, fmt) for key, stats in relevant(tensors).items()]
    first = min(limits, key=lambda limit: limit.overflows_from, default=None)
    last = max(limits, key=lambda limit: limit.lost_below, default=None)
    high = first.overflows_from - 1 if first else LOG2_SCALES[-1]
    low = last.lost_below if last else LOG2_SCALES[0]
    empty = low > high
    return ScaleWindow(
        low,
        high,
        first if high < LOG2_SCALES[-1] else None,
        last if low > LOG2_SCALES[0] else None,
        _worst(limits, lambda limit: low - limit.overflows_from) if empty else (),
        _worst(limits, lambda limit: limit.lost_below - high - 1) if empty else (),
    )


def _worst(
    limits: list[ScaleLimits[Key]], beyond: Callable[[ScaleLimits[Key]], int]
) -> tuple[ScaleLimits[Key], ...]:
    """Return the limits that are reached or passed, the farthest passed first."""
    return tuple(sorted((limit for limit in limits if beyond(limit) >= 0), key=beyond, reverse=True))


def limits_of(key: Key, stats: TensorStats, fmt: Format) -> ScaleLimits[Key]:
    """Return between which of the scales considered a tensor is safe.

    The lower limit does not look at the upper one: both together tell how many octaves are missing.
    """
    low = next((k for k in LOG2_SCALES if _keeps(stats, fmt, k)), LOG2_SCALES[-1] + 1)
    over = next((k for k in LOG2_SCALES if stats.overflowed(fmt, k).low), LOG2_SCALES[-1] + 1)
    return ScaleLimits(key, low, over)


def _keeps(stats: TensorStats, fmt: Format, log2_scale: int) -> bool:
    # No scale makes a tensor more exact than a coarse format rounds.
    kept = lost_share(stats, fmt, log2_scale) <= max(KEPT_ERROR, fmt.epsilon)
    return kept and underflow_share(stats, fmt, log2_scale) <= KEPT_UNDERFLOW
