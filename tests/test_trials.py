"""What is said of the time that a plan costs: a ratio only where the times of both kinds lie apart."""

from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from ampcheck.trials import Times

SECONDS = st.lists(st.floats(0.01, 10.0), min_size=2, max_size=5).map(tuple)


@given(SECONDS, SECONDS)
def test_a_ratio_is_told_only_where_every_run_of_one_kind_took_longer(without, kept):
    words = Times(without, kept).words
    apart = all(a < b for a in without for b in kept) or all(a > b for a in without for b in kept)
    assert ("times as long" in words) == apart
    assert ("no difference measured" in words) == (not apart)
    if apart:
        assert f"takes {median(kept) / median(without):.2f} times" in words


def test_one_run_of_each_tells_nothing():
    assert "no difference measured" in Times((1.0,), (3.0,)).words
