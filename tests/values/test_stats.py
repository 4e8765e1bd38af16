"""Statistics: laws, and counts against real casts at every scale, format and bit pattern."""

import math
from functools import reduce

import ml_dtypes
import pytest
import torch
from builders import rounded, stats
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ampcheck.values.formats import BF16, E4M3, E5M2, FORMATS, FP16, FP32, TF32, Format
from ampcheck.values.stats import HUGE_EXPONENT, TINY_EXPONENT, Bounds, TensorStats, merge

CASTS = {FP16: torch.float16, BF16: torch.bfloat16, E5M2: torch.float8_e5m2}

bit_patterns = st.integers(0, 2**32 - 1)
scales = st.integers(-20, 24)


def from_bits(bits: int) -> float:
    """Return the float32 with these bits; every one of them, subnormals, infinities and NaNs included."""
    return torch.tensor([bits], dtype=torch.int64).to(torch.int32).view(torch.float32).double().item()


def near(fmt: Format) -> st.SearchStrategy[float]:
    """Return magnitudes around a format's edges: ties, the smallest numbers, the top binade."""
    edges = (
        fmt.smallest_subnormal / 2,
        fmt.smallest_subnormal,
        fmt.smallest_normal,
        fmt.max,
        fmt.overflow_from,
    )
    nudges = st.sampled_from((1.0, 1 - 2.0**-24, 1 + 2.0**-23, 0.75, 1.5, 1.25, 2.0))
    return st.builds(lambda e, n, s: s * e * n, st.sampled_from(edges), nudges, st.sampled_from((-1.0, 1.0)))


any_floats = bit_patterns.map(from_bits)
finite = any_floats.filter(math.isfinite)
#: Sums of these squares are exact in any order, so that sums of squares can be compared with ==.
tame = st.integers(-1000, 1000).map(lambda i: i / 16)
lists = st.lists(any_floats, max_size=40)
tame_lists = st.lists(tame, max_size=30)


def unrounded(values: list[float], fmt: Format, log2_scale: int) -> list[float]:
    """Return float32 values that, scaled, are exact in float32 again: each around the format's edges."""
    exact = [
        v
        for v in values
        if float(torch.tensor(v * 2.0**log2_scale, dtype=torch.float32)) == v * 2.0**log2_scale
    ]
    return [v for v in exact if float(torch.tensor(v, dtype=torch.float32)) == v]


@st.composite
def cases(draw: st.DrawFn, formats: tuple[Format, ...]) -> tuple[Format, int, list[float]]:
    """Return a format, a scale, and magnitudes of which many lie at that format's edges once scaled."""
    fmt, log2_scale = draw(st.sampled_from(formats)), draw(scales)
    at_edges = near(fmt).map(lambda v: v * 2.0**-log2_scale)
    values = draw(st.lists(st.one_of(finite, at_edges), max_size=30))
    return fmt, log2_scale, unrounded(values, fmt, log2_scale)


def real_cast(values: list[float], fmt: Format) -> list[float]:
    """Return the values rounded by torch; tf32 by its own rule on the bits of a float32.

    torch saturates where e4m3 has no number, which hides an overflow: there ml_dtypes, which gives NaN.
    """
    tensor = torch.tensor(values, dtype=torch.float32)
    if fmt is E4M3:
        return tensor.numpy().astype(ml_dtypes.float8_e4m3fn).astype(float).tolist()
    if fmt is FP32:
        return tensor.double().tolist()
    if fmt is not TF32:
        return tensor.to(CASTS[fmt]).double().tolist()
    bits = tensor.view(torch.int32).long() & 0xFFFFFFFF
    bits = (bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000  # to nearest even, 13 bits dropped
    return (
        torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32).view(torch.float32).double().tolist()
    )


def truth(values: list[float], fmt: Format, log2_scale: int) -> tuple[int, int, int]:
    """Return how many values are underflowed, subnormal and overflowed by a real cast after scaling."""
    scaled = [v * 2.0**log2_scale for v in values]
    cast = real_cast(scaled, fmt)
    underflowed = sum(before != 0 and after == 0 for before, after in zip(scaled, cast, strict=True))
    subnormal = sum(0 < abs(after) < fmt.smallest_normal for after in cast)
    # A value just under the smallest normal number rounds up to it, having lost bits as subnormals do.
    lifted = sum(
        abs(before) < fmt.smallest_normal == abs(after) for before, after in zip(scaled, cast, strict=True)
    )
    overflowed = sum(math.isfinite(b) and not math.isfinite(a) for b, a in zip(scaled, cast, strict=True))
    return underflowed, subnormal + lifted, overflowed


def unsure(values: list[float], fmt: Format, log2_scale: int) -> int:
    """Return how many values lie where the docs say that a count is an interval."""
    exponents = [max(math.frexp(v)[1] - 1, TINY_EXPONENT) for v in values if v]
    edges = {fmt.underflow_exponent - 1, fmt.max_exponent}
    return sum(e == TINY_EXPONENT or e + log2_scale in edges for e in exponents)


@given(cases((FP16, BF16, E4M3, E5M2, TF32, FP32)))
def test_counts_enclose_what_real_casts_do(case: tuple[Format, int, list[float]]) -> None:
    fmt, log2_scale, values = case
    held = stats(values)
    underflowed, subnormal, overflowed = truth(values, fmt, log2_scale)
    for bounds, true in (
        (held.underflowed(fmt, log2_scale), underflowed),
        (held.subnormal(fmt, log2_scale), subnormal),
        (held.overflowed(fmt, log2_scale), overflowed),
    ):
        assert bounds.low <= true <= bounds.high
        assert bounds.high - bounds.low <= unsure(values, fmt, log2_scale)


@given(cases((FP16, BF16, E4M3, E5M2, TF32)))
def test_counts_away_from_the_edges_are_exact(case: tuple[Format, int, list[float]]) -> None:
    fmt, log2_scale, values = case
    values = [v for v in values if not unsure([v], fmt, log2_scale)]
    held = stats(values)
    found = (
        held.underflowed(fmt, log2_scale),
        held.subnormal(fmt, log2_scale),
        held.overflowed(fmt, log2_scale),
    )
    assert all(bounds.exact for bounds in found)
    assert tuple(bounds.low for bounds in found) == truth(values, fmt, log2_scale)


@given(cases((FP16, BF16, E4M3, E5M2)))
def test_whether_anything_overflows_is_always_known(case: tuple[Format, int, list[float]]) -> None:
    fmt, log2_scale, values = case
    bounds = stats(values).overflowed(fmt, log2_scale)
    assert (bounds.low > 0) == (bounds.high > 0) == (truth(values, fmt, log2_scale)[2] > 0)


@pytest.mark.parametrize("fmt", [FP16, E4M3, E5M2, BF16], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("log2_scale", [-20, -3, 0, 7, 16, 24])
def test_every_fp16_number_at_fixed_scales(fmt: Format, log2_scale: int) -> None:
    every = torch.arange(2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    values = [v for v in every.double().tolist() if math.isfinite(v)]
    underflowed, subnormal, overflowed = truth(values, fmt, log2_scale)
    held = stats(values)
    assert held.underflowed(fmt, log2_scale).low <= underflowed <= held.underflowed(fmt, log2_scale).high
    assert held.subnormal(fmt, log2_scale).low <= subnormal <= held.subnormal(fmt, log2_scale).high
    assert held.overflowed(fmt, log2_scale).low <= overflowed <= held.overflowed(fmt, log2_scale).high


@given(cases((FP16, BF16, E4M3, E5M2, FP32)))
def test_rounding_by_hand_agrees_with_real_casts(case: tuple[Format, int, list[float]]) -> None:
    fmt, log2_scale, values = case
    scaled = [v * 2.0**log2_scale for v in values]
    by_hand = [rounded(v, fmt) for v in scaled]
    assert repr(by_hand) == repr([math.nan if math.isnan(v) else v for v in real_cast(scaled, fmt)])


@given(lists, lists)
def test_statistics_of_both_are_the_sum_of_both(a: list[float], b: list[float]) -> None:
    both, added = stats(a + b), stats(a) + stats(b)
    assert (both.lowest, both.counts, both.zeros, both.infs, both.nans, both.amax) == (
        (added.lowest, added.counts, added.zeros, added.infs, added.nans, added.amax)
    )
    assert math.isclose(both.sum_squares, added.sum_squares, rel_tol=1e-12)
    assert added.numel == len(a) + len(b)


@given(tame_lists, tame_lists, tame_lists)
def test_adding_is_a_commutative_monoid(a: list[float], b: list[float], c: list[float]) -> None:
    x, y, z = stats(a), stats(b), stats(c)
    assert (x + y) + z == x + (y + z) == stats(a + b + c)
    assert x + y == y + x
    assert x + TensorStats() == x == TensorStats() + x


@given(st.lists(tame_lists, max_size=5))
def test_merging_is_adding_one_after_the_other(parts: list[list[float]]) -> None:
    each = [stats(part) for part in parts]
    assert merge(each) == reduce(lambda a, b: a + b, each, TensorStats())


@given(lists)
def test_counts_have_one_normal_form(values: list[float]) -> None:
    held = stats(values)
    assert held == TensorStats.from_counts(
        dict(held.exponents()),
        zeros=held.zeros,
        infs=held.infs,
        nans=held.nans,
        amax=held.amax,
        sum_squares=held.sum_squares,
    )
    assert not held.counts or (held.counts[0] and held.counts[-1])
    assert sum(held.counts) == held.nonzero == held.numel - held.zeros - held.nonfinite


@given(lists, scales)
def test_sign_does_not_matter(values: list[float], log2_scale: int) -> None:
    assert stats(values) == stats([-v for v in values])


@given(st.lists(st.integers(-(2**20), 2**20).map(float), max_size=30), st.integers(-60, 60))
def test_multiplying_by_a_power_of_two_is_a_shift(values: list[float], log2_scale: int) -> None:
    shifted = stats(values).scaled(log2_scale)
    assert shifted == stats([v * 2.0**log2_scale for v in values])
    assert shifted.scaled(-log2_scale) == stats(values)
    for fmt in FORMATS.values():
        for question in ("underflowed", "subnormal", "overflowed"):
            assert getattr(stats(values), question)(fmt, log2_scale) == getattr(shifted, question)(fmt)


@pytest.mark.parametrize("value", [2.0**-140, 2.0**127, 2.0**130])
def test_a_shift_that_leaves_fp32_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"expected exponents .* log2_scale=1;"):
        stats([value]).scaled(1)


@given(lists, scales)
def test_zeros_that_were_zero_are_never_flushed(values: list[float], log2_scale: int) -> None:
    zeros = [0.0, -0.0] * 10
    for fmt in FORMATS.values():
        assert stats(values + zeros).underflowed(fmt, log2_scale) == stats(values).underflowed(
            fmt, log2_scale
        )


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20), scales)
@example([1e300, 1e-300], -20)
def test_doubles_beyond_fp32_are_counted_at_its_ends(values: list[float], log2_scale: int) -> None:
    held = stats(values)
    assert held.nonzero == sum(v != 0 for v in values)
    assert not held.counts or TINY_EXPONENT <= held.lowest <= held.highest <= HUGE_EXPONENT
    for fmt in FORMATS.values():
        cast = [(v * 2.0**log2_scale, rounded(v * 2.0**log2_scale, fmt)) for v in values]
        assume(
            all(
                math.isfinite(before) and (before or not v)
                for (before, _), v in zip(cast, values, strict=True)
            )
        )
        over = sum(not math.isfinite(after) for _, after in cast)
        gone = sum(before != 0 and after == 0 for before, after in cast)
        assert held.overflowed(fmt, log2_scale).low <= over <= held.overflowed(fmt, log2_scale).high
        assert held.underflowed(fmt, log2_scale).low <= gone <= held.underflowed(fmt, log2_scale).high


@given(tame_lists)
def test_root_mean_square_is_torchs(values: list[float]) -> None:
    expected = torch.tensor(values, dtype=torch.float64).square().mean().sqrt().item() if values else 0.0
    assert math.isclose(stats(values).rms, expected, rel_tol=1e-12)


def test_bounds_add_and_know_when_they_are_exact() -> None:
    assert Bounds(1, 2) + Bounds(3, 3) == Bounds(4, 5)
    assert Bounds(3, 3).exact
    assert not Bounds(3, 4).exact
