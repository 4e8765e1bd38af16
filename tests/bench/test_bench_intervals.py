"""Statistics of the bench against SciPy, NumPy and simulation."""

import math
import random
import statistics

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from ampcheck.bench.intervals import enough, equivalence, mean_interval, power, quantile, ratio
from ampcheck.values.wording import percent

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@given(values, st.floats(0, 1))
def test_quantiles_are_numpys(found, share):
    assert quantile(found, share) == pytest.approx(float(np.quantile(found, share)), rel=1e-9, abs=1e-6)


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


def _hits(rho, rounds, trials=200):
    """Return how many intervals hold the truth where neighbouring rounds resemble each other by rho."""
    draw = random.Random(1)
    hits = 0
    for trial in range(trials):
        error, quotients = draw.gauss(0, 1), []
        for _ in range(rounds):
            quotients.append(2 * math.exp(0.05 * error))
            error = rho * error + math.sqrt(1 - rho**2) * draw.gauss(0, 1)
        found = ratio(quotients, [1.0] * rounds, seed=trial)
        hits += found.low <= 2 <= found.high
    return hits / trials


@pytest.mark.parametrize("rounds", [4, 10, 40])
def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says(rounds):
    assert _hits(0.0, rounds) >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / 200)


@pytest.mark.parametrize("rounds", [10, 40])
def test_rounds_that_resemble_their_neighbours_widen_the_interval(rounds):
    """Without blocks 0.75 of the intervals held the truth here."""
    assert _hits(0.5, rounds) >= 0.88


def test_the_power_of_a_test_is_what_simulation_gives():
    draw, spread, count, difference = random.Random(2), 0.02, 5, 0.03
    seen = sum(
        scipy.stats.ttest_1samp(
            [draw.gauss(difference, spread) for _ in range(count)], 0, alternative="greater"
        ).pvalue
        < 0.05
        for _ in range(1000)
    )
    assert power(spread, count, difference) == pytest.approx(seen / 1000, abs=0.05)


def test_enough_seeds_are_the_fewest_that_reach_the_usual_power():
    found = enough(0.02, 0.02)
    assert power(0.02, found, 0.02) >= 0.8 > power(0.02, found - 1, 0.02)
    assert enough(1.0, 1e-6) is None
    assert enough(0.0, 0.1) == 2


def test_a_slowdown_of_a_whole_round_falls_out_of_the_ratio():
    rounds = [1.0, 9.0, 1.1, 30.0, 2.0, 1.0, 5.0]
    found = ratio([3 * length for length in rounds], rounds)
    assert (found.estimate, found.low, found.high) == pytest.approx((3, 3, 3))


def test_a_power_is_never_said_to_be_certain():
    assert [percent(power(spread, 5, 1.0)) for spread in (0.0, 1e-3)] == [">99.9 %", ">99.9 %"]
    assert power(1e-3, 1, 1.0) == 0.0
