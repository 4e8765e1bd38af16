"""The loss scale: the scaler against torch's, estimates against real casts, advice against brute force."""

import itertools
import math
import zlib
from collections.abc import Callable

import pytest
import scale_regret
import torch
from builders import stats
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ampcheck.api import check
from ampcheck.diagnose.scaling import (
    TORCH_DEFAULTS,
    ScalerSettings,
    ScalerStep,
    advise_groups,
    advise_scale,
    estimated_error,
    gradient_tensors,
    maxima,
    outlook,
    replay,
    scale_window,
    simulate,
)
from ampcheck.diagnose.scaling.outlook import HORIZON, Outlook
from ampcheck.diagnose.scaling.rounding import LOG2_SCALES, underflow_share
from ampcheck.diagnose.scaling.window import KEPT_ERROR, KEPT_UNDERFLOW
from ampcheck.values.formats import BF16, E5M2, FP16, Format
from ampcheck.values.report import Report
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Phase, Site, StepSummary, Trace

DTYPES = {FP16: torch.float16, BF16: torch.bfloat16, E5M2: torch.float8_e5m2}


def real_scaler(
    chosen: ScalerSettings, found_inf: Callable[[int, float], bool], steps: int
) -> tuple[list[ScalerStep], float]:
    """Return what torch's scaler does with one parameter whose gradient is infinite where asked."""
    scaler = torch.amp.GradScaler(
        "cpu",
        chosen.init_scale,
        chosen.growth_factor,
        chosen.backoff_factor,
        chosen.growth_interval,
        enabled=chosen.enabled,
    )
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    seen = []
    for index in range(steps):
        scale = float(scaler.scale(torch.ones(())))
        parameter.data.zero_()
        parameter.grad = torch.tensor([math.inf if found_inf(index, scale) else max(scale, 1.0)])
        scaler.step(optimizer)
        scaler.update()
        tracker = scaler._get_growth_tracker() if chosen.enabled else 0
        seen.append(ScalerStep(scale, bool(parameter == 0), tracker))
    return seen, scaler.get_scale()


scaler_settings = st.builds(
    ScalerSettings,
    init_scale=st.one_of(
        st.integers(-140, 127).map(lambda k: 2.0**k), st.floats(1e-30, 3.4e38), st.just(2.0**16)
    ),
    growth_factor=st.one_of(st.just(2.0), st.floats(1.001, 1e4)),
    backoff_factor=st.one_of(st.just(0.5), st.floats(1e-4, 0.999)),
    growth_interval=st.integers(1, 6),
)


@settings(max_examples=150, deadline=None)
@given(scaler_settings, st.lists(st.booleans(), max_size=60))
def test_simulated_scaler_is_torchs_step_for_step(chosen: ScalerSettings, found_inf: list[bool]) -> None:
    steps, final = real_scaler(chosen, lambda index, _: found_inf[index], len(found_inf))
    run = simulate(chosen, found_inf)
    assert list(run.steps) == steps
    assert run.final_scale == (final if found_inf else run.final_scale)
    assert run.skipped == sum(found_inf)


@settings(max_examples=50, deadline=None)
@given(scaler_settings, st.lists(st.floats(2.0**-40, 2.0**20), max_size=60))
def test_replayed_maxima_overflow_where_torchs_cast_does(chosen: ScalerSettings, maxima: list[float]) -> None:
    def overflows(index: int, scale: float) -> bool:
        return bool(torch.tensor(maxima[index] * scale, dtype=torch.float64).half().isinf())

    steps, _ = real_scaler(chosen, overflows, len(maxima))
    assert list(replay(chosen, maxima, FP16).steps) == steps


def test_scale_does_not_grow_beyond_fp32() -> None:
    chosen = ScalerSettings(init_scale=2.0**127, growth_interval=1)
    steps, final = real_scaler(chosen, lambda *_: False, 3)
    assert final == simulate(chosen, [False] * 3).final_scale == 2.0**127
    assert list(simulate(chosen, [False] * 3).steps) == steps


def test_disabled_scaler_skips_nothing() -> None:
    run = simulate(ScalerSettings(enabled=False), [True, False])
    assert run.skipped == 0
    assert [step.scale for step in run.steps] == [1.0, 1.0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"backoff_factor": 0.0},
        {"init_scale": 1e39},
        {"init_scale": 0.0},
        {"init_scale": math.nan},
        {"growth_interval": 0},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"expected .*{next(iter(wrong))}.*, got"):
        ScalerSettings(**wrong)  # type: ignore[arg-type]


def test_settling_counts_the_skips_before_the_first_growth_only() -> None:
    # 2**16 down to 2**10: six skips; up to 2**11 after 2000 steps, where it overflows again.
    run = replay(TORCH_DEFAULTS, [60.0] * 9000, FP16)
    assert (run.settling_step, run.skipped_at_start) == (6, 6)
    assert run.steps[6].scale == 2.0**10
    later = [index for index, step in enumerate(run.steps) if step.skipped][6:]
    assert later == [2006, 4007, 6008, 8009]


def gradients(kind: str, center: float, spread: float, elements: int = 3000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{kind} {center} {spread}".encode()))
    normal = torch.randn(elements, dtype=torch.float64, generator=generator)
    sign = torch.randint(0, 2, (elements,), generator=generator) * 2 - 1
    made = {
        "normal": normal * 2.0**center,
        "lognormal": sign * 2.0 ** (center + spread * normal),
        "uniform": sign * torch.rand(elements, dtype=torch.float64, generator=generator) * 2.0**center,
        "two scales": torch.where(torch.arange(elements) % 8 == 0, normal, normal * 64.0**-spread)
        * 2.0**center,
    }[kind]
    return made.float().double()


def real_error(values: torch.Tensor, fmt: Format, log2_scale: int) -> float:
    """Return the relative RMS error of a real cast."""
    # PyTorch rounds a double to FP32 on its way to a narrower format; these values are FP32's already.
    cast = (values.float() * 2.0**log2_scale).to(DTYPES[fmt]).double() * 2.0**-log2_scale
    error = float((cast - values).norm() / values.norm())
    return error if math.isfinite(error) else math.inf


#: Two of the distributions have no spread to be varied.
SHAPES = [("normal", 0.8), ("uniform", 0.8)]
SHAPES += [(kind, spread) for kind in ("lognormal", "two scales") for spread in (0.4, 0.8, 1.2)]


@pytest.mark.parametrize("center", [-30.0, -12.3, 4.0])
@pytest.mark.parametrize(("kind", "spread"), SHAPES)
def test_estimated_errors_agree_with_real_casts(kind: str, spread: float, center: float) -> None:
    values = gradients(kind, center, spread)
    held = stats(values.tolist())
    for fmt, log2_scale in itertools.product([FP16, BF16, E5M2], range(-20, 41, 3)):
        real, estimated = real_error(values, fmt, log2_scale), estimated_error(held, fmt, log2_scale)
        assert math.isinf(real) == math.isinf(estimated), (fmt.name, log2_scale, real, estimated)
        if math.isfinite(real):
            assert real / 1.35 <= estimated <= real * 1.35, (fmt.name, log2_scale, real, estimated)


@pytest.mark.parametrize("center", [-30.0, -12.3, 4.0])
@pytest.mark.parametrize("spread", [2.0, 4.0, 8.0])
def test_estimated_errors_agree_roughly_where_a_few_elements_are_all_the_energy(
    center: float, spread: float
) -> None:
    values = gradients("lognormal", center, spread)
    held = stats(values.tolist())
    for log2_scale in range(-20, 41, 3):
        real, estimated = real_error(values, FP16, log2_scale), estimated_error(held, FP16, log2_scale)
        assert math.isinf(real) == math.isinf(estimated), (log2_scale, real, estimated)
        if math.isfinite(real):
            # How one element rounds is chance: anything up to half a unit of its last place.
            assert real / 3 <= estimated <= real * 3 + FP16.epsilon / 2, (log2_scale, real, estimated)


def test_error_falls_as_the_scale_rises_until_it_overflows() -> None:
    held = stats(gradients("lognormal", -14.0, 4.0).tolist())
    errors = [estimated_error(held, FP16, k) for k in LOG2_SCALES]
    finite = [error for error in errors if math.isfinite(error)]
    assert finite == sorted(finite, reverse=True)
    assert errors == finite + [math.inf] * (len(errors) - len(finite))


def test_flushed_share_agrees_with_real_casts_up_to_the_edge() -> None:
    values = gradients("lognormal", -14.0, 1.5)
    held = stats(values.tolist())
    matters = values[values.abs() >= 0.01 * values.square().mean().sqrt()]
    for log2_scale in range(-16, 10, 2):
        real = float(((matters * 2.0**log2_scale).half() == 0).double().mean())
        assert underflow_share(held, FP16, log2_scale) == pytest.approx(real, abs=0.06)


def real_window(tensors: dict[str, torch.Tensor]) -> tuple[int, int]:
    """Return, by real casts, the smallest scale that keeps all tensors and the largest that suits all."""

    def kept(values: torch.Tensor, k: int) -> bool:
        cast = (values.float() * 2.0**k).half().double() * 2.0**-k
        finite = cast.where(cast.isfinite(), values)
        matters = values.abs() >= 0.01 * values.square().mean().sqrt()
        underflowed = float((cast[matters] == 0).double().mean())
        return float((finite - values).norm() / values.norm()) <= KEPT_ERROR and underflowed <= KEPT_UNDERFLOW

    low = next(k for k in LOG2_SCALES if all(kept(values, k) for values in tensors.values()))
    overflow = [
        k for k in LOG2_SCALES if any((v.float() * 2.0**k).half().isinf().any() for v in tensors.values())
    ]
    return low, min(overflow, default=LOG2_SCALES[-1] + 1) - 1


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.tuples(st.sampled_from(["normal", "lognormal"]), st.floats(-24, 12), st.floats(0.5, 5)),
        min_size=1,
    )
)
def test_window_is_the_one_that_real_casts_find(made: dict[str, tuple[str, float, float]]) -> None:
    tensors = {name: gradients(*how) for name, how in made.items()}
    window = scale_window({name: stats(values.tolist()) for name, values in tensors.items()}, FP16)
    low, high = real_window(tensors)
    assert window.high == high
    assert abs(window.low - low) <= 1
    assert window.fits == (window.low <= window.high)
    assert (window.high in window) == window.fits


def flat(exponent: int, count: int = 100) -> TensorStats:
    """Return statistics of elements that all are 1.5 * 2**exponent."""
    return stats([1.5 * 2.0**exponent] * count)


def site(module: str, line: int) -> Site:
    return Site(module, "mm", "output", Phase.BACKWARD, "", "model.py", line)


def test_a_window_that_is_empty_names_both_who_overflow_and_who_are_lost() -> None:
    loud, soft = site("head", 10), site("stem", 3)
    tensors = {loud: flat(12), soft: flat(-29), site("body", 5): flat(-4)}
    window = scale_window(tensors, FP16)
    assert not window.fits
    # 1.5 * 2**12 overflows from 2**4 on; at 2**3 the soft one is less than the smallest number.
    assert window.first_to_overflow is not None
    assert window.last_to_be_kept is not None
    assert (window.first_to_overflow.key, window.first_to_overflow.overflows_from) == (loud, 4)
    assert window.last_to_be_kept.key == soft
    assert window.octaves == window.high - window.low < 0
    assert [limit.key for limit in window.overflowing] == [loud]
    assert [limit.key for limit in window.lost] == [soft]
    assert window.message == (
        "no loss scale fits, because the gradient of head (model.py:10) overflows from 2^4 on and "
        f"the gradient of stem (model.py:3) underflows below 2^{window.low}: "
        f"{-window.octaves} octaves too far apart"
    )


def test_many_tiny_elements_without_energy_raise_no_alarm() -> None:
    # By count 90 % are underflowed at every scale that fits; they carry a 10**-12th of the norm.
    spread = flat(10, 100) + flat(-30, 900)
    window = scale_window({"softmax tails": spread}, FP16)
    assert window.fits
    assert estimated_error(spread, FP16, 0) < 1e-3


def test_tensors_of_zeros_and_of_nothing_are_safe_everywhere() -> None:
    window = scale_window(
        {"relu": stats([0.0] * 9), "empty": stats([]), "saturated": flat(-100), "x": flat(0)}, FP16
    )
    assert window.fits
    assert window.last_to_be_kept is not None
    assert window.last_to_be_kept.key == "x"
    assert (
        scale_window({"relu": stats([0.0] * 9)}, FP16).message
        == "every gradient fits from loss scale 2^-24 to 2^40"
    )


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-40, 10), st.floats(0.3, 4)), min_size=1, max_size=5),
    st.lists(st.floats(0.2, 1.0), min_size=1, max_size=10),
)
def test_advised_scale_does_not_overflow_and_loses_no_more_than_the_best(
    shapes: list[tuple[int, float]], steps: list[float]
) -> None:
    tensors = {str(i): gradients("lognormal", float(c), s, 1000) for i, (c, s) in enumerate(shapes)}
    held = {name: stats(values.tolist()) for name, values in tensors.items()}
    largest = max(one.amax for one in held.values())
    advice = advise_scale(held, [largest * step for step in steps], FP16)

    def real(k: int) -> float:
        errors = [real_error(values, FP16, k) for values in tensors.values()]
        return math.sqrt(sum(error**2 for error in errors))

    # Scales that leave no room for the error of the largest element itself are not to be advised.
    safe = [k for k in LOG2_SCALES if not FP16.overflows(largest * 2.0**k * 1.25)]
    assert advice.log2_scale in safe
    assert real(advice.log2_scale) <= 1.05 * min(real(k) for k in safe)
    assert advice.settings.init_scale == 2.0**advice.log2_scale
    assert outlook(advice.settings, [largest] * 1500, -24, FP16).skipped_at_start == 0


def test_where_there_is_room_the_default_scale_stays() -> None:
    advice = advise_scale({"w": flat(-12)}, [1.5 * 2.0**-12], FP16)
    assert advice.settings == TORCH_DEFAULTS
    assert not advice.settings.growth_interval - 2000
    assert (advice.window.high, advice.headroom) == (27, 12)


@pytest.mark.parametrize(
    ("steps", "headroom"), [(1, 4), (2, 3), (20, 2)], ids=["one step", "two steps", "twenty steps"]
)
def test_fewer_steps_leave_more_headroom(steps: int, headroom: int) -> None:
    assert advise_scale({"w": flat(4)}, [1.5 * 2.0**4] * steps, FP16).headroom == headroom


def test_steps_that_differed_leave_more_headroom() -> None:
    quiet = [1.5 * 2.0**-2] * 19
    assert advise_scale({"w": flat(4)}, [*quiet, 1.5 * 2.0**4], FP16).headroom == 6


def test_refused_scales_bound_the_advice_from_above() -> None:
    advice = advise_scale({"w": flat(-12)}, [1.5 * 2.0**-12], FP16, refused=(16, 15, 14))
    assert advice.window.high == 13
    assert advice.log2_scale < 14
    assert advice.default.skipped_at_start == 3


def test_defaults_outlook_counts_what_torchs_scaler_does() -> None:
    advice = advise_scale({"w": flat(4)}, [1.5 * 2.0**4], FP16)
    parameters = [1.5 * 2.0**4] * 2100
    steps, _ = real_scaler(
        TORCH_DEFAULTS, lambda i, scale: FP16.overflows(parameters[i] * scale), len(parameters)
    )
    skipped = [index for index, step in enumerate(steps) if step.skipped]
    assert skipped == [0, 1, 2, 3, 4, 2005]
    assert (advice.default.skipped_at_start, advice.default.settling_step) == (5, 5)
    assert advice.default.steps_per_skip == 2001
    assert advice.default.message == (
        "5 skips at the start, then one every 2,000 steps when GradScaler tries a larger scale, are normal"
    )
    assert advice.default_error == math.inf


def test_spikes_over_a_narrow_window_shorten_the_growth_interval() -> None:
    # One step in 500 is 64 times as large; at the scale which holds that one, the soft gradients are lost.
    spiky = ([2.0] * 499 + [128.0]) * (HORIZON // 500)
    advice = advise_scale({"soft": flat(-32, 1000), "loud": flat(0)}, spiky, FP16)
    costs = {
        interval: outlook(
            ScalerSettings(advice.settings.init_scale, growth_interval=interval),
            spiky,
            advice.window.low,
            FP16,
        ).cost
        for interval in (2000, 1000, 500, 200, 100)
    }
    assert costs[2000] > 0.5
    assert costs[advice.settings.growth_interval] == min(costs.values()) < 0.01
    assert advice.advised.cost == min(costs.values())


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (
            Outlook(10_000, 7, 7, 4, 2001.0, 0, 512.0),
            "7 skips at the start, then one every 2,000 steps when GradScaler tries a larger scale, are normal",
        ),
        (
            Outlook(10_000, 1, 1, 0, 0.0, 0, 1.0),
            "1 skip at the start, then no skip in the next 10,000 steps, are normal",
        ),
        (Outlook(10_000, 0, 0, 1, 0.0, 0, 1.0), "1 skip in the first 10,000 steps is normal"),
        (
            Outlook(10_000, 0, 0, 5, 2001.0, 0, 1.0),
            "one skip every 2,000 steps when GradScaler tries a larger scale is normal",
        ),
    ],
)
def test_what_is_normal_is_said_in_a_sentence(seen: Outlook, message: str) -> None:
    assert seen.message == message


def test_bf16_needs_no_scaler_and_fp16_does_where_gradients_are_small() -> None:
    small = {"w": stats(gradients("normal", -24.0, 1.0).tolist())}
    assert not advise_scale(small, [2.0**-22], BF16).needed
    assert advise_scale(small, [2.0**-22], FP16).needed


def test_groups_that_agree_share_a_scaler() -> None:
    maxima = {"a": [2.0**-9] * 9, "b": [2.0**-7] * 9}
    advice = advise_groups({"a": {"x": flat(-10)}, "b": {"y": flat(-8)}}, maxima, FP16)
    assert not advice.apart
    assert advice.of("a") is advice.joint


def test_groups_that_differ_are_judged_apart() -> None:
    maxima = {"generator": [2.0**-29] * 9, "critic": [2.0**11] * 9}
    groups = {"generator": {"x": flat(-30)}, "critic": {"y": flat(10)}}
    advice = advise_groups(groups, maxima, FP16)
    assert not advice.joint.window.fits
    assert all(one.window.fits for one in advice.apart.values())
    assert advice.of("critic").log2_scale < 6
    assert advice.of("generator").log2_scale >= 16
    with pytest.raises(ValueError, match="expected tensors of one group each"):
        advise_groups({"a": {"x": flat(0)}, "b": {"x": flat(0)}}, {"a": [2.0], "b": [2.0]}, FP16)


@pytest.mark.parametrize("name", scale_regret.QUICK)
def test_advised_scale_is_as_good_as_the_best_found_by_brute_force(name: str) -> None:
    case = next(case for case in scale_regret.CASES if case.name == name)
    found = scale_regret.study(case, draws=2)
    # The whole study in reports/scale_regret.md: median 1.00, worst 1.04.
    assert found.of(found.advised) <= 1.2
    assert math.isinf(found.of(found.scales[16])) == (found.advice.default_error == math.inf)


def recorded(
    reference: dict[Site, TensorStats],
    low: dict[Site, TensorStats],
    log2_scale: int,
    *,
    nonfinite: bool = False,
) -> Report:
    """Return the report of one step."""
    summary = StepSummary(1.0, log2_scale, 3.0 * 2.0**log2_scale, nonfinite)
    return Report("model.py", "fp16", log2_scale, Trace(reference), Trace(low, steps=(summary,)))


def backward(op: str, dtype: str, module: str = "head", slot: str = "output") -> Site:
    return Site(module, op, slot, Phase.BACKWARD, dtype, "model.py", 7)


def test_a_gradient_computed_in_fp32_and_cast_counts_as_it_was_before_the_cast() -> None:
    values = gradients("normal", -27.0, 1.0, 2000)
    other = gradients("normal", -9.0, 1.0, 2000)
    scaled = (values.float() * 2.0**4).half()
    report = recorded(
        {
            backward("log_softmax_backward", "float32"): stats(values.tolist()),
            backward("mul", "float32"): stats(other.tolist()),
        },
        {
            backward("mul", "float32"): stats((other * 16).tolist()),
            backward("log_softmax_backward", "float32"): stats((values * 16).tolist()),
            backward("_to_copy", "float16"): stats(scaled.double().tolist()),
        },
        4,
    )
    assert int((scaled == 0).sum()) > 300
    assert gradient_tensors(report) == {backward("_to_copy", ""): stats(values.tolist())}


def test_a_cast_of_unknown_source_stands_for_itself_without_the_scale() -> None:
    report = recorded({}, {backward("_to_copy", "float16"): stats([2.0**10])}, 10)
    (held,) = gradient_tensors(report).values()
    assert held == stats([1.0])
    assert scale_window({"loss": held}, FP16).high == 15


def test_the_gradients_of_a_weight_and_of_an_input_are_told_apart() -> None:
    weight, inner = gradients("normal", 0.0, 1.0, 500), gradients("normal", -20.0, 1.0, 900)
    both = backward("mm", "float32")
    state = Site("head", "", "param_grad[weight]", Phase.STATE, "float32")
    report = recorded(
        {both: stats([*weight.tolist(), *inner.tolist()]), state: stats(weight.tolist())},
        {backward("mm", "float16"): stats([1.0])},
        0,
    )
    found = gradient_tensors(report)
    assert found[backward("mm", "", slot="param_grad[weight]")] == stats(weight.tolist())
    rest = found[backward("mm", "")]
    assert list(rest.exponents()) == list(stats(inner.tolist()).exponents())
    assert rest.amax >= float(inner.abs().max())
    assert rest.rms == pytest.approx(stats(inner.tolist()).rms, rel=0.2)


@pytest.mark.parametrize(
    ("slot", "relative", "counts"),
    [
        # A bias in front of a normalisation, and a small one that is real.
        ("output[2]", 2.0**-20, False),
        ("output[2]", 2.0**-16, True),
        # An input gradient is no sum over the batch: less noise, so a smaller one is real.
        ("output[0]", 2.0**-20, True),
        ("output[0]", 2.0**-26, False),
    ],
)
def test_gradients_that_are_the_noise_of_fp32_ask_for_no_scale(
    slot: str, relative: float, *, counts: bool
) -> None:
    weight, other = (backward("convolution_backward", "", slot=name) for name in ("output[1]", slot))
    held = {weight: flat(-1), other: stats([1.5 * 2.0**-1 * relative] * 100)}
    reference = {site._replace(dtype="float32"): stats for site, stats in held.items()}
    low = {site._replace(dtype="float16"): stats for site, stats in held.items()}
    found = gradient_tensors(recorded(reference, low, 0))
    assert found == (held if counts else {weight: held[weight]})


def test_the_queries_of_a_single_key_have_no_gradient() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            return nn.functional.scaled_dot_product_attention(q, k, v)

    torch.manual_seed(0)
    # One token: softmax over one key is 1 whatever the query, and FP32 says 1e-9 where the gradient is 0.
    report = check(
        Attention(), torch.randn(32, 2, 1, 16), lambda model, batch: model(batch).float().square().mean()
    )
    window = scale_window(gradient_tensors(report), FP16)
    assert window.low < 10
    assert window.fits


def test_an_overflow_that_reached_no_parameter_does_not_limit_the_scale() -> None:
    reference = {backward("where", "float32"): flat(10), backward("mm", "float32", "stem"): flat(-4)}
    low = {backward("where", "float16"): stats([math.inf] * 100), backward("mm", "float16", "stem"): flat(6)}
    assert list(gradient_tensors(recorded(reference, low, 10))) == [backward("mm", "", "stem")]
    harmful = recorded(reference, low, 10, nonfinite=True)
    assert set(gradient_tensors(harmful)) == {backward("where", ""), backward("mm", "", "stem")}
    assert maxima(recorded(reference, low, 10)) == (3.0,)
    assert maxima(harmful) == (math.inf,)
