"""Statistics of repeated measurements: medians, ratios with an interval, tests of equivalence and their power."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

#: Of the intervals of ratios; both ends together leave out the rest.
CONFIDENCE = 0.95
#: Resamples of a bootstrap: the ends of a 95 % interval then move by less than a hundredth of its width.
RESAMPLES = 1000
#: With fewer rounds an interval is so wide, and its width so uncertain, that a warning stands beside it.
FEWEST_ROUNDS = 10
#: Each of the two one-sided tests of an equivalence is made at this level, as is usual.
ALPHA = 0.05
#: A test should see a difference of the margin with this probability, as is usual.
POWER = 0.8
#: A difference has to lie outside of two intervals. One of so many half widths of the wider does with that probability:
#: simulated, and held by a test.
SEEN_FROM = 1.5
#: No number of runs makes a probability of one.
_ALMOST_SURE = 1 - 1e-9
_MOST_SEEDS = 1000
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

    @property
    def seen_from(self) -> float:
        """Return the difference of a ratio from 1 that as many rounds show in four of five times."""
        if not 0 < self.low <= self.high < math.inf:
            return math.inf
        return math.expm1(SEEN_FROM * math.log(self.high / self.low) / 2)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies, linear between neighbours.

    >>> quantile([4.0, 1.0, 3.0, 2.0], 0.25)
    1.75
    """
    import numpy as np

    return float(np.quantile(values, share))


def ratio(over: Sequence[float], under: Sequence[float], seed: int = 0) -> Interval:
    """Return the median of over[i] / under[i] with a bootstrap interval; round i measured both.

    The quotient is taken within a round, so that what slows a whole round down falls out of it. Neighbouring
    rounds resemble each other, so blocks of about the square root of their number are drawn, in a ring. So few
    blocks spread less than they should: the interval is widened as Student's t is beside the normal distribution.
    """
    import numpy as np
    from scipy import stats

    logs = np.log(np.asarray(over) / np.asarray(under))
    count = len(logs)
    if count != len(over) or count < _FEWEST_FOR_TEST:
        center = math.exp(float(np.median(logs))) if count else math.nan
        return Interval(center, 0.0, math.inf)
    length = min(max(2, round(math.sqrt(count))), count)
    blocks = math.ceil(count / length)
    starts = np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, blocks, 1))
    drawn = ((starts + np.arange(length)) % count).reshape(RESAMPLES, -1)[:, :count]
    middle = float(np.median(logs))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.median(logs[drawn], axis=1), (tail, 1 - tail))
    freedom = max(count / length - 1, 1.0)
    wider = stats.t.ppf(1 - tail, freedom) / stats.norm.ppf(1 - tail) * math.sqrt((freedom + 1) / freedom)
    ends = middle + wider * (low - middle), middle + wider * (high - middle)
    return Interval(math.exp(middle), *(math.exp(float(end)) for end in ends))


def t_quantile(share: float, freedom: float) -> float:
    """Return the value below which Student's t lies with a probability."""
    from scipy import stats

    return float(stats.t.ppf(share, freedom))


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


def power(spread: float, count: int, difference: float) -> float:
    """Return the probability that `count` paired runs show a true difference to be one, by a one-sided t test."""
    from scipy import stats

    if count < _FEWEST_FOR_TEST:
        return 0.0
    if not spread:
        return _ALMOST_SURE
    shift = difference / (spread / math.sqrt(count))
    found = float(stats.nct.sf(t_quantile(1 - ALPHA, count - 1), count - 1, shift))
    return min(found, _ALMOST_SURE)


def enough(spread: float, difference: float) -> int | None:
    """Return how many paired runs show a difference with the usual probability; None where a thousand do not."""
    counts = range(_MOST_SEEDS + 1)
    found = bisect_left(
        counts, POWER, lo=_FEWEST_FOR_TEST, key=lambda count: power(spread, count, difference)
    )
    return found if found in counts else None
