"""Statistics of repeated measurements: medians, ratios with an interval, and tests of equivalence."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

#: Of the intervals of ratios; both ends together leave out the rest.
CONFIDENCE = 0.95
#: Resamples of a bootstrap: the ends of a 95 % interval then move by less than a hundredth of its width.
RESAMPLES = 1000
#: Each of the two one-sided tests of an equivalence is made at this level, as is usual.
ALPHA = 0.05
_FEWEST_FOR_TEST = 2


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the interval it is believed to lie in."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Return half the width over the estimate."""
        return (self.high - self.low) / 2 / self.estimate if self.estimate else math.inf


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies, linear between neighbours.

    >>> quantile([4.0, 1.0, 3.0, 2.0], 0.25)
    1.75
    """
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def ratio(over: Sequence[float], under: Sequence[float], seed: int = 0) -> Interval:
    """Return the median of over[i] / under[i] with a bootstrap interval; round i measured both.

    The quotient is taken within a round, so that what slows a whole round down falls out of it.
    """
    quotients = [a / b for a, b in zip(over, under, strict=True)]
    draw = random.Random(seed)  # noqa: S311  # resampling, no secrets
    medians = [median(draw.choices(quotients, k=len(quotients))) for _ in range(RESAMPLES)]
    tail = (1 - CONFIDENCE) / 2
    return Interval(median(quotients), quantile(medians, tail), quantile(medians, 1 - tail))


def t_below(value: float, freedom: int) -> float:
    """Return the probability that Student's t with whole degrees of freedom lies below a value.

    Abramowitz and Stegun, 26.7.3 and 26.7.4: for whole degrees of freedom it is a finite sum.
    """
    angle = math.atan2(value, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    first = freedom % 2
    terms, term = 0.0, cosine if first else 1.0
    for step in range(first + 1, freedom, 2):
        terms += term
        term *= cosine * cosine * step / (step + 1)
    inside = (angle + sine * terms) * 2 / math.pi if first else sine * terms
    return (1 + inside) / 2


def t_quantile(share: float, freedom: int) -> float:
    """Return the value below which Student's t lies with a probability above one half."""
    low, high = 0.0, 1.0
    while t_below(high, freedom) < share:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_below(middle, freedom) < share else (low, middle)
        if middle in {low, high} and math.nextafter(low, high) >= high:
            break
    return high


def mean_interval(differences: Sequence[float], alpha: float = ALPHA) -> Interval:
    """Return the mean and its t interval of confidence 1 - 2 alpha; infinite with fewer than two values."""
    center = fmean(differences)
    if len(differences) < _FEWEST_FOR_TEST:
        return Interval(center, -math.inf, math.inf)
    error = stdev(differences) / math.sqrt(len(differences))
    reach = t_quantile(1 - alpha, len(differences) - 1) * error
    return Interval(center, center - reach, center + reach)


def equivalence(differences: Sequence[float], margin: float) -> tuple[str, Interval]:
    """Return what paired differences (larger is worse) say within a margin, and the interval of their mean.

    Two one-sided t tests: "equivalent" where the interval lies within the margin, "worse" and "better" where it
    lies beyond it, else "undecided".
    """
    interval = mean_interval(differences)
    if -margin <= interval.low and interval.high <= margin:
        return "equivalent", interval
    if interval.low > margin:
        return "worse", interval
    if interval.high < -margin:
        return "better", interval
    return "undecided", interval
