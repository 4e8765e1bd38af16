"""What rounding to a format costs a tensor at a loss scale, estimated from its exponent histogram."""

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

from ampcheck.values.formats import Format
from ampcheck.values.stats import TensorStats

Key = TypeVar("Key")

#: Log2 of the loss scales that are considered: those that leave an ordinary loss well within FP32.
LOG2_SCALES = range(-24, 41)
#: Norm, relative to the largest tensor's, below which a tensor carries nothing: FP32's own rounding, squared.
#: The tails of saturated functions end there, and a head of the model with a very small weight does not.
NEGLIGIBLE_NORM = 2.0**-48
#: Magnitude, relative to the tensor's RMS, from which on a single element matters.
MATTERS = 0.01
#: Variance of a uniform error over its range squared: rounding moves a number evenly within half a step.
_UNIFORM = 1 / 12
#: Magnitudes within an octave, relative to its lower end, have squares of this mean: (1 + 2 + 4) / 3.
_OCTAVE_SQUARE = 7 / 3


def estimated_error(stats: TensorStats, fmt: Format, log2_scale: int) -> float:
    """Return the RMS error, relative to the RMS, of a tensor scaled by 2**log2_scale and rounded to a format.

    Infinite where an element overflows. Elements are taken to lie evenly within their octave.

    >>> from ampcheck.values.formats import FP16
    >>> small = TensorStats(-30, (100,), amax=2.0**-30, sum_squares=100 * 4.0**-30)
    >>> estimated_error(small, FP16, 0), estimated_error(small, FP16, 46)
    (1.0, inf)
    """
    return math.inf if stats.overflowed(fmt, log2_scale).low else lost_share(stats, fmt, log2_scale)


def lost_share(stats: TensorStats, fmt: Format, log2_scale: int) -> float:
    """Return the same error if the format had no upper end; it falls as the scale rises."""
    energies = {exponent: count * octave_energy(exponent) for exponent, count in stats.exponents()}
    energy = sum(energies.values())
    if not energy:
        return 0.0
    # From half the smallest subnormal on a number becomes that subnormal: an error as of any other rounding.
    kept = fmt.underflow_exponent - 1 - log2_scale
    underflowed = sum(energy for exponent, energy in energies.items() if exponent < kept)
    steps = sum(count * _step(e, fmt, log2_scale) ** 2 for e, count in stats.exponents() if e >= kept)
    return math.sqrt(underflowed / energy + steps * _UNIFORM / (stats.sum_squares or energy))


def _step(exponent: int, fmt: Format, log2_scale: int) -> float:
    """Return the distance, before scaling, between the numbers of a format in an octave."""
    return float(2.0 ** (max(exponent + log2_scale, fmt.min_exponent) - fmt.precision + 1 - log2_scale))


def underflow_share(stats: TensorStats, fmt: Format, log2_scale: int) -> float:
    """Return the share of the elements that matter to their tensor which become zero.

    Errors of the whole are blind to elements that carry little energy, yet an optimizer that normalises each
    element, as Adam does, learns from them too.
    """
    least = stats.rms * MATTERS
    # In the octave of the least one, the share of its length that lies above.
    counts = [(e, count * min(max(2.0 - least * 2.0**-e, 0.0), 1.0)) for e, count in stats.exponents()]
    matter = sum(count for _, count in counts)
    underflowed = sum(count for e, count in counts if e + log2_scale < fmt.underflow_exponent - 1)
    return underflowed / matter if matter else 0.0


def octave_energy(exponent: int) -> float:
    """Return the mean square of magnitudes that lie evenly within an octave."""
    return float(_OCTAVE_SQUARE * 4.0**exponent)


def combined_error(tensors: Iterable[TensorStats], fmt: Format, log2_scale: int) -> float:
    """Return the root of the summed squares of the tensors' errors: what a chain of all gathers."""
    return math.sqrt(math.fsum(estimated_error(stats, fmt, log2_scale) ** 2 for stats in tensors))


def relevant(tensors: Mapping[Key, TensorStats]) -> dict[Key, TensorStats]:
    """Return the tensors that have something to lose: not all zero, and not nothing beside the largest."""
    largest = max((stats.sum_squares for stats in tensors.values()), default=0.0)
    return {
        key: stats
        for key, stats in tensors.items()
        if stats.nonzero and stats.sum_squares >= NEGLIGIBLE_NORM**2 * largest
    }
