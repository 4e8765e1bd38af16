"""Statistics of the bench against SciPy, NumPy and simulation."""

import math
import random
import statistics

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from ampcheck.bench.intervals import equivalence, mean_interval, quantile, ratio, t_below, t_quantile

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@given(values, st.floats(0, 1))
def test_quantiles_are_numpys(found, share):
    assert quantile(found, share) == pytest.approx(float(np.quantile(found, share)), rel=1e-9, abs=1e-6)


@given(st.floats(-50, 50), st.integers(1, 60))
def test_students_t_is_scipys(value, freedom):
    assert t_below(value, freedom) == pytest.approx(scipy.stats.t.cdf(value, freedom), abs=1e-9)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30])
@pytest.mark.parametrize("share", [0.9, 0.95, 0.975, 0.999])
def test_quantiles_of_students_t_are_scipys(share, freedom):
    assert t_quantile(share, freedom) == pytest.approx(scipy.stats.t.ppf(share, freedom), rel=1e-9)


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=12, unique=True), st.floats(0.01, 3))
def test_equivalence_is_two_one_sided_t_tests_of_scipy(differences, margin):
    if statistics.stdev(differences) < 1e-6:
        return
    low = scipy.stats.ttest_1samp(differences, -margin, alternative="greater").pvalue
    high = scipy.stats.ttest_1samp(differences, margin, alternative="less").pvalue
    word, interval = equivalence(differences, margin)
    if abs(max(low, high) - 0.05) > 1e-9:
        assert (word == "equivalent") == (max(low, high) < 0.05)
    worse = scipy.stats.ttest_1samp(differences, margin, alternative="greater").pvalue
    if abs(worse - 0.05) > 1e-9:
        assert (word == "worse") == (worse < 0.05)
    expected = scipy.stats.t.interval(
        0.9, len(differences) - 1, statistics.mean(differences), scipy.stats.sem(differences)
    )
    assert (interval.low, interval.high) == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_one_seed_decides_nothing():
    assert equivalence([0.0], 1.0)[0] == "undecided"
    assert mean_interval([2.0]).high == math.inf


def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says():
    draw = random.Random(1)
    hits = 0
    for trial in range(200):
        slow = [math.exp(draw.gauss(0, 0.3)) for _ in range(15)]  # what slows a whole round
        one = [drift * math.exp(draw.gauss(0, 0.1)) for drift in slow]
        two = [2 * drift * math.exp(draw.gauss(0, 0.1)) for drift in slow]
        found = ratio(two, one, seed=trial)
        hits += found.low <= 2 <= found.high
    assert hits >= 180, "95 % of 200, less three standard deviations"


def test_a_slowdown_of_a_whole_round_falls_out_of_the_ratio():
    rounds = [1.0, 9.0, 1.1, 30.0, 2.0, 1.0, 5.0]
    found = ratio([3 * length for length in rounds], rounds)
    assert (found.estimate, found.low, found.high) == pytest.approx((3, 3, 3))
