"""The verdict: one sentence for each way a step can go, with the figures recounted."""

from dataclasses import replace

import pytest
from builders import Layer, answer, finding, report, sentence_of, stats
from examples import REPORTS, clean
from test_tables import paired

from ampcheck.diagnose.rules import diagnose
from ampcheck.renderers.words import measured
from ampcheck.values.findings import Severity
from ampcheck.values.outcome import Outcome
from ampcheck.values.trace import Failure, Phase, Site
from ampcheck.values.verdict import Health

SAYS = {
    "clean": (Health.SAFE, "fp16 with loss scale 2^16 is safe here: none of 13,157 gradient elements"),
    "forward_overflow": (
        Health.UNSAFE,
        "overflows in the forward: bmm in blocks.1.attn (Attention) exceeds 65504 (model.py:26)",
    ),
    "gradient_underflow": (
        Health.UNSAFE,
        "fp16 with loss scale 2^4 is not safe: 38 % of the gradient elements",
    ),
    "planned": (
        Health.UNSAFE,
        "fp16 overflows in the forward: bmm in blocks.1.attn (Attention) exceeds 65504",
    ),
    "stand_in_loss": (Health.SAFE, "fp16 with loss scale 2^16 is safe here"),
    "bf16": (Health.SAFE, "bf16 is safe here: none of"),
    "many_layers": (
        Health.PARTLY_AUDITED,
        "2.0 % of the gradient elements became zero: ampcheck did not test",
    ),
    "nasty": (Health.RISK, "works here, with 11 warnings: none of"),
    "two_ranks": (
        Health.UNSAFE,
        "fp16 overflows in the forward: bmm in blocks.1.attn (Attention) exceeds 65504 (model.py:26)",
    ),
    "empty": (Health.UNKNOWN, "no verdict: no floating-point"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_the_verdict_of_every_example(name: str) -> None:
    health, sentence = answer(REPORTS[name]())
    assert (health, SAYS[name][1]) == (
        SAYS[name][0],
        SAYS[name][1] if SAYS[name][1] in sentence else sentence,
    )
    assert "\n" not in sentence_of(REPORTS[name]())


def test_an_error_is_never_called_safe() -> None:
    site = next(iter(clean().low.sites))
    errors = finding(site), finding(site, severity=Severity.ERROR, message="the mask\nis lost")
    health, sentence = answer(replace(clean(), findings=errors))
    assert (health, sentence) == (Health.UNSAFE, "fp16 with loss scale 2^16 is not safe: the mask is lost")


def test_warnings_are_counted_and_information_is_not() -> None:
    site = next(iter(clean().low.sites))
    notes = [finding(site, severity=Severity.INFO)] * 2
    assert answer(replace(clean(), findings=tuple(notes)))[0] is Health.SAFE
    warned = replace(clean(), findings=(finding(site), *notes))
    assert answer(warned)[0] is Health.RISK
    assert "with 1 warning: none of" in sentence_of(warned)


def test_what_was_not_compared_is_never_called_safe() -> None:
    told = "is not finite in fp16 and finite in FP32: ampcheck did not test whether that does harm"
    for made in (
        paired({"fine": [1.0], "hot": [1000.0, 1.0]}, log2_scale=8),
        paired({"hot": [1e6]}, log2_scale=4),
    ):
        health, sentence = answer(made)
        assert health is Health.PARTLY_AUDITED
        assert sentence.startswith(f"mm in hot {told}; what was seen of fp16 with loss scale")
    lost = paired({"a": [2.0**-70] * 5 + [1.0] * 5}, log2_scale=4)
    assert answer(lost)[0] is Health.PARTLY_AUDITED
    assert sentence_of(lost).startswith("50 % of the gradient elements became zero: ampcheck did not test")
    well = {"settled": Outcome(4, grad_error=0.01)}
    assert answer(replace(lost, outcomes=well))[0] is Health.SAFE


def test_a_nan_that_fp32_does_not_have_is_named() -> None:
    made = report([Layer("norm", op="mul", line=4)])
    sites = {s: replace(h, nans=1) if s.phase is Phase.FORWARD else h for s, h in made.low.sites.items()}
    broken = replace(
        made, low=replace(made.low, sites=sites), outcomes={"settled": Outcome(16, loss_nonfinite=True)}
    )
    health, sentence = answer(replace(broken, findings=diagnose(broken)))
    assert health is Health.UNSAFE
    assert "mul in norm (Linear) is the first to give NaN (model.py:4)" in sentence


def test_no_gradient_is_named_as_the_origin_of_a_loss_that_is_not_finite() -> None:
    made = clean()
    gradient = Site("head", "", "param_grad[weight]", Phase.STATE, "float32")
    outcome = Outcome(16, loss_nonfinite=True, grads_nonfinite=("head.weight",))
    broken = replace(
        made,
        low=replace(made.low, sites={**made.low.sites, gradient: stats([float("nan")])}),
        outcomes={"settled": outcome},
        findings=(),
    )
    health, sentence = answer(replace(broken, findings=diagnose(broken)))
    assert health is Health.UNSAFE
    assert sentence.endswith("is not safe: loss is not finite; where that begins was not seen")


def test_a_step_that_autocast_stops_says_where() -> None:
    failure = Failure("RuntimeError", "dtypes differ", "net", "index_put", "model.py", 9)
    stopped = replace(clean(), low=replace(clean().low, sites={}, failure=failure))
    assert answer(replace(stopped, findings=diagnose(stopped))) == (
        Health.UNSAFE,
        "fp16 autocast stops the step: RuntimeError at model.py:9, where FP32 runs without error",
    )


def test_a_step_without_low_precision_gradients_says_so() -> None:
    made = report([Layer("a", dtype="float32")])
    assert sentence_of(made).endswith("is safe here: no gradient was held in fp16")
    assert stats([]).numel == 0


def test_what_would_be_without_a_loss_scale_is_said_only_where_there_is_one() -> None:
    made = report([Layer("a", gradient=-25.0)])
    assert "without scaling" in sentence_of(made)
    assert "without scaling" not in sentence_of(replace(made, log2_scale=0))


def test_a_re_run_that_came_out_well_outweighs_what_lies_between() -> None:
    well = {"settled": Outcome(16, grad_error=0.01, underflow=0.02)}
    for name in ("forward_overflow", "gradient_underflow"):
        made = replace(REPORTS[name](), outcomes=well, findings=())
        assert answer(made)[0] is Health.SAFE
        assert answer(replace(made, outcomes={}))[0] is Health.PARTLY_AUDITED
    infinite = replace(paired({"hot": [1e6]}, log2_scale=4), outcomes=well)
    assert answer(infinite)[0] is Health.SAFE


def test_an_overflow_that_a_re_run_has_shown_to_do_no_harm_is_told_as_that() -> None:
    made = paired({"hot": [1e6, 2.0, 3e5]}, log2_scale=4)
    assert measured(made) == "measured at 2^4: no underflow; the first to overflow is 2^0"
    well = replace(made, outcomes={"settled": Outcome(4, grad_error=0.01)})
    told = "from 2^0 on 2 elements overflow; every weight gradient stays finite"
    assert measured(well) == f"measured at 2^4: no underflow; {told}"


def test_a_re_run_that_went_wrong_is_never_called_safe() -> None:
    outcomes = {"settled": Outcome(16, grad_error=0.5)}
    unknown = replace(clean(), outcomes=outcomes)  # nobody knows what rounding the weights alone gives
    assert answer(replace(unknown, findings=diagnose(unknown)))[0] is Health.RISK
    harmed = replace(clean(), outcomes=outcomes | {"rounded": Outcome(16, grad_error=0.01)})
    health, sentence = answer(replace(harmed, findings=diagnose(harmed)))
    assert health is Health.UNSAFE
    assert sentence.startswith("fp16 with loss scale 2^16 is not safe: gradient error 50 %")
