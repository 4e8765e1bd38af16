"""Tables: every figure counted again from the values, by hand."""

from dataclasses import replace

import pytest
from builders import ELEMENTS, Layer, report, rounded, stats
from examples import REPORTS, clean, many_layers
from hypothesis import given
from hypothesis import strategies as st

from ampcheck.diagnose.tables import (
    CurvePoint,
    LayerRow,
    best_scale,
    cast_rows,
    first_overflow,
    layer_rows,
    measured_loss,
    scale_curve,
)
from ampcheck.values.formats import FP16
from ampcheck.values.report import Report
from ampcheck.values.stats import Bounds, TensorStats, merge
from ampcheck.values.trace import Phase, Site, StepSummary, Trace


def paired(gradients: dict[str, list[float]], log2_scale: int = 0, phase: Phase = Phase.BACKWARD) -> Report:
    """Return a report of one tensor for each module, rounded to fp16 at a scale."""
    reference, low = {}, {}
    for module, values in gradients.items():
        site = Site(module, "mm", "output", phase, "float16")
        reference[site._replace(dtype="float32")] = stats(values)
        low[site] = stats([rounded(v * 2.0**log2_scale, FP16) for v in values])
    steps = StepSummary(0.5, 0, 1.0, nonfinite=False), StepSummary(0.5, log2_scale, 1.0, nonfinite=False)
    return Report("t", "fp16", log2_scale, Trace(reference, steps=steps[:1]), Trace(low, steps=steps[1:]))


#: No ties and nothing in the top binade: counts are then exact.
clear = st.builds(
    lambda e, m, s: s * m * 2.0**e,
    st.integers(-40, 10),
    st.sampled_from((1.25, 1.5, 1.75)),
    st.sampled_from((-1, 0, 1)),
)
tensors = st.dictionaries(st.sampled_from(["a", "b", "c.d"]), st.lists(clear, max_size=20), min_size=1)


@given(tensors, st.integers(0, 4))
def test_the_curve_is_what_casting_at_every_scale_gives(gradients: dict[str, list[float]], used: int) -> None:
    points = scale_curve(paired(gradients, used), range(5))
    values = [v for held in gradients.values() for v in held]
    for point in points:
        scale = 2.0**point.log2_scale
        cast = [(v, rounded(v * scale, FP16)) for v in values]
        underflowed = sum(v != 0 and c == 0 for v, c in cast)
        subnormal = sum(0 < abs(v * scale) < FP16.smallest_normal and c != 0 for v, c in cast)
        assert point.nonzero == sum(v != 0 for v in values)
        assert point.underflowed.low <= underflowed <= point.underflowed.high
        assert point.subnormal.low <= subnormal <= point.subnormal.high
        assert point.overflowed == Bounds(0, 0)


@given(tensors, st.integers(-3, 8))
def test_measured_loss_counts_what_became_zero(gradients: dict[str, list[float]], scale: int) -> None:
    loss = measured_loss(paired(gradients, scale), Phase.BACKWARD)
    values = [v for held in gradients.values() for v in held if v]
    assert loss.live == len(values)
    assert loss.lost == sum(rounded(v * 2.0**scale, FP16) == 0 for v in values)
    assert loss.share == (loss.lost / loss.live if values else 0.0)


def test_prediction_and_measurement_agree_on_whole_reports() -> None:
    for name in ("clean", "gradient_underflow", "many_layers"):
        made = REPORTS[name]()
        point = next(p for p in scale_curve(made) if p.log2_scale == made.log2_scale)
        loss = measured_loss(made, Phase.BACKWARD)
        assert point.underflowed.low <= loss.lost <= point.underflowed.high
        assert point.nonzero == loss.live


def test_each_tensors_own_amax_decides_whether_it_overflows() -> None:
    made = paired({"a": [65503.0, 65519.9], "b": [65520.0, 40000.0, 1.0], "c": [3e4]})
    (point,) = scale_curve(made, [0])
    assert point.overflowed == Bounds(1, 2)  # b's top binade alone: one of two, or both
    assert scale_curve(made, [2])[0].overflowed == Bounds(5, 5)  # two binades up, all are over
    assert scale_curve(made, [-1])[0].overflowed == Bounds(0, 0)


def point(scale: int, underflowed: int, overflowed: int = 0) -> CurvePoint:
    return CurvePoint(
        scale, Bounds(underflowed, underflowed), Bounds(0, 0), Bounds(overflowed, overflowed), 100
    )


def test_the_best_scale_loses_least_without_overflow_and_is_the_smallest_of_equals() -> None:
    points = [point(0, 9), point(1, 3), point(2, 2), point(3, 2), point(4, 0, overflowed=1)]
    assert best_scale(points) == points[2]
    assert best_scale([point(0, 0, overflowed=1)]) is None
    maybe = replace(point(5, 0), overflowed=Bounds(0, 1))
    assert best_scale([*points, maybe]) == points[2]


def by_module(made: Report) -> dict[str, LayerRow]:
    return {row.module: row for row in layer_rows(made)}


@pytest.mark.parametrize("name", ["clean", "gradient_underflow", "many_layers", "bf16"])
def test_layer_rows_lose_no_element(name: str) -> None:
    made = REPORTS[name]()
    rows = layer_rows(made)
    for phase, column in ((Phase.FORWARD, "activations"), (Phase.BACKWARD, "gradients")):
        whole = merge(held for site, held in made.low.sites.items() if site.phase is phase)
        assert sum(getattr(row, column).numel for row in rows) == whole.numel
        assert sum(getattr(row, column).zeros for row in rows) == whole.zeros
    assert sum(row.casts for row in rows) == sum(number.calls for number in made.low.casts.values())
    assert sum(row.cast_bytes for row in rows) == sum(number.bytes for number in made.low.casts.values())


def test_gradients_are_shown_without_the_scale() -> None:
    row = by_module(paired({"a": [2.0**-9, -(2.0**-12), 0.0]}, log2_scale=8))["a"]
    assert row.gradients == stats([2.0**-9, -(2.0**-12), 0.0])


def test_flushed_shares_are_of_what_was_not_zero() -> None:
    values = [0.0, 0.0, 1.0, 2.0**-30, 2.0**-40, 2.0**-3]
    backward = by_module(paired({"a": values}))["a"]
    forward = by_module(paired({"a": values}, phase=Phase.FORWARD))["a"]
    assert (backward.underflow_forward, backward.underflow_backward) == (0.0, 0.5)
    assert (forward.underflow_forward, forward.underflow_backward) == (0.5, 0.0)


def test_only_what_was_finite_in_the_reference_has_overflowed() -> None:
    made = paired({"a": [float("-inf"), 7e4, 8e4, 1.0], "b": [float("nan"), 1.0]})
    rows = by_module(made)
    assert (rows["a"].overflowed, rows["b"].overflowed) == (2, 0)
    assert first_overflow(made) == next(iter(made.low.sites))
    assert first_overflow(paired({"a": [float("inf")]})) is None
    forward = paired({"a": [1e6]}, phase=Phase.FORWARD)
    both = replace(made, reference=made.reference + forward.reference, low=made.low + forward.low)
    assert first_overflow(both) == next(iter(forward.low.sites))


def test_the_first_overflow_is_the_first_to_run() -> None:
    made = paired({"z": [1.0], "m": [1e6], "a": [1e9]})
    site = first_overflow(made)
    assert site is not None
    assert site.module == "m"


def test_rows_are_sorted_by_trouble_then_as_executed() -> None:
    made = paired(
        {"fine": [1.0], "half": [1.0, 2.0**-30], "over": [1e6], "also fine": [2.0], "all": [2.0**-30]}
    )
    assert [row.module for row in layer_rows(made)] == ["over", "all", "half", "fine", "also fine"]
    assert [row.troubled for row in layer_rows(made)] == [True, True, True, False, False]
    assert sum(row.troubled for row in layer_rows(many_layers())) == 2
    little = paired({"a": [1.0] * 200 + [2.0**-30]})
    assert [row.troubled for row in layer_rows(little)] == [False]
    assert layer_rows(little)[0].trouble > 0


def test_the_worst_error_of_a_layer_is_shown() -> None:
    made = clean()
    for row in layer_rows(made):
        errors = [e.relative_rms for site, e in made.errors.items() if site.module == row.module]
        assert row.error == max(errors)


def test_a_layer_has_the_dtypes_of_its_results_and_its_class() -> None:
    wide = Site("a", "sum", "output", Phase.FORWARD, "float32")
    half = Site("a", "mm", "output", Phase.FORWARD, "float16")
    made = Report("t", "fp16", 0, Trace(), Trace({wide: stats([1.0]), half: stats([1.0, 2.0])}))
    assert by_module(made)["a"].dtypes == ("fp16", "fp32")
    assert by_module(clean())["stem.bn"].kind == "BatchNorm2d"
    assert by_module(clean())[""].location == "(root)"


def test_casts_are_sorted_by_what_they_write() -> None:
    rows = cast_rows(
        report([Layer("a", parameters=10), Layer("b", parameters=30), Layer("c", parameters=10)])
    )
    assert [(cast.module, number.bytes) for cast, number in rows] == [("b", 60), ("a", 20), ("c", 20)]


def test_an_empty_report_has_empty_tables() -> None:
    made = Report("t", "fp16", 16, Trace(), Trace())
    assert layer_rows(made) == ()
    assert cast_rows(made) == ()
    assert measured_loss(made, Phase.BACKWARD).share == 0.0
    assert all(p.nonzero == 0 and p.underflowed == Bounds(0, 0) for p in scale_curve(made))
    assert merge([]) == TensorStats()
    assert len(clean().low.sites) * ELEMENTS == merge(clean().low.sites.values()).numel
