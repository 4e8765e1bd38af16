"""How magnitudes spread over the powers of two: one histogram that answers for every scale and format."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ampcheck.values.codec import SPARSE
from ampcheck.values.formats import Format

#: Stands for every magnitude above zero and below 2**-126: fp32 subnormals, of unknown exponent.
TINY_EXPONENT = -127
#: Stands for every finite magnitude from 2**128 on, which only fp64 can hold.
HUGE_EXPONENT = 128


@dataclass(frozen=True, slots=True)
class Bounds:
    """A count known to lie in [low, high]; at the edges of a format a histogram knows no more."""

    low: int
    high: int

    def __add__(self, other: Self) -> "Bounds":
        """Return the bounds of the sum."""
        return Bounds(self.low + other.low, self.high + other.high)

    @property
    def exact(self) -> bool:
        """Tell whether the count is known exactly."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class TensorStats:
    """How the magnitudes of one or more tensors spread over the powers of two.

    `stats(a) + stats(b)` equals `stats(a and b)`, so steps, ranks, modules and operations are all sums.
    The sum of squares adds with the rounding of a double; everything else adds exactly.
    """

    JSON = SPARSE

    lowest: int = 0  #: exponent, floor(log2|x|), of the first entry of counts
    counts: tuple[int, ...] = ()  #: elements per exponent; neither the first nor the last is 0
    zeros: int = 0
    infs: int = 0
    nans: int = 0
    amax: float = 0.0  #: largest finite magnitude
    sum_squares: float = 0.0  #: over finite elements

    @classmethod
    def from_counts(cls, counts: Mapping[int, int], **rest: Any) -> "TensorStats":
        """Return statistics from counts per exponent, in their one normal form."""
        filled = [exponent for exponent, count in counts.items() if count]
        if not filled:
            return cls(**rest)
        low, high = min(filled), max(filled)
        return cls(low, tuple(counts.get(e, 0) for e in range(low, high + 1)), **rest)

    def exponents(self) -> Iterator[tuple[int, int]]:
        """Yield (exponent, elements) from small to large."""
        return iter(enumerate(self.counts, self.lowest))

    def __add__(self, other: Self) -> "TensorStats":
        """Return the statistics of both sets of elements together."""
        return merge((self, other))

    @property
    def nonzero(self) -> int:
        """Return the number of finite elements that are not zero."""
        return sum(self.counts)

    @property
    def nonfinite(self) -> int:
        """Return the number of infinities and NaNs."""
        return self.infs + self.nans

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return self.nonzero + self.zeros + self.nonfinite

    @property
    def rms(self) -> float:
        """Return the root mean square of the finite elements; 0.0 when there are none."""
        finite = self.nonzero + self.zeros
        return (self.sum_squares / finite) ** 0.5 if finite else 0.0

    @property
    def highest(self) -> int:
        """Return the exponent of the last entry of counts."""
        return self.lowest + len(self.counts) - 1

    def scaled(self, log2_scale: int) -> "TensorStats":
        """Return the statistics after multiplying by 2**log2_scale, where that is exact in fp32."""
        shifted = {exponent + log2_scale: count for exponent, count in self.exponents()}
        edges = self.counts and (self.lowest == TINY_EXPONENT or self.highest == HUGE_EXPONENT)
        if edges or any(not TINY_EXPONENT < exponent < HUGE_EXPONENT for exponent in shifted):
            msg = f"expected exponents that stay within fp32's normal range, got {log2_scale=!r}; use underflowed()"
            raise ValueError(msg)
        return TensorStats.from_counts(
            shifted,
            zeros=self.zeros,
            infs=self.infs,
            nans=self.nans,
            amax=self.amax * 2.0**log2_scale,
            sum_squares=self.sum_squares * 4.0**log2_scale,
        )

    def underflowed(self, fmt: Format, log2_scale: int = 0) -> Bounds:
        """Count the elements that are not zero and become zero when scaled and rounded to a format.

        >>> from ampcheck.values.formats import FP16
        >>> TensorStats(-26, (5, 3, 2)).underflowed(FP16)  # 2**-25 itself is a tie and goes to zero
        Bounds(low=5, high=8)
        """
        tie = fmt.underflow_exponent - 1
        sure = sum(count for e, count in self.exponents() if e != HUGE_EXPONENT and e + log2_scale < tie)
        edge = sum(count for e, count in self.exponents() if e + log2_scale == tie)
        return Bounds(sure, sure + edge + self._tiny_above(tie - log2_scale))

    def subnormal(self, fmt: Format, log2_scale: int = 0) -> Bounds:
        """Count the elements that stay above zero but fall below the smallest normal number, losing bits."""
        low, high = fmt.underflow_exponent, fmt.min_exponent
        sure = sum(c for e, c in self.exponents() if low <= e + log2_scale < high and e != TINY_EXPONENT)
        edge = sum(c for e, c in self.exponents() if e + log2_scale == low - 1)
        tiny = self.counts[0] if self.counts and self.lowest == TINY_EXPONENT else 0
        loose = tiny if TINY_EXPONENT + log2_scale >= low else 0
        return Bounds(sure, sure + edge + loose)

    def overflowed(self, fmt: Format, log2_scale: int = 0) -> Bounds:
        """Count the finite elements that no finite number of a format can stand for after scaling."""
        top = fmt.max_exponent - log2_scale
        if not self.counts or self.highest < min(top, HUGE_EXPONENT):
            return Bounds(0, 0)
        sure = sum(count for e, count in self.exponents() if e > top)
        edge = sum(count for e, count in self.exponents() if e == top or (e == HUGE_EXPONENT and e < top))
        if not edge or sure:
            return Bounds(sure, sure + edge)
        # The largest element decides whether any of the top binade is over the edge, not how many.
        over = fmt.overflows(self.amax * 2.0**log2_scale)
        return Bounds(1, edge) if over else Bounds(0, 0)

    def _tiny_above(self, exponent: int) -> int:
        """Return the elements of unknown tiny exponent that a cut at or below 2**-127 may or may not take."""
        unsure = self.counts and self.lowest == TINY_EXPONENT and exponent < TINY_EXPONENT
        return self.counts[0] if unsure else 0


def merge(parts: Iterable[TensorStats]) -> TensorStats:
    """Return the statistics of many sets of elements together."""
    counts: dict[int, int] = {}
    zeros = infs = nans = 0
    amax = sum_squares = 0.0
    for part in parts:
        for exponent, count in enumerate(part.counts, part.lowest):
            counts[exponent] = counts.get(exponent, 0) + count
        zeros += part.zeros
        infs += part.infs
        nans += part.nans
        amax = max(amax, part.amax)
        sum_squares += part.sum_squares
    return TensorStats.from_counts(
        counts, zeros=zeros, infs=infs, nans=nans, amax=amax, sum_squares=sum_squares
    )
