"""The verdict: one sentence for each way a step can go, with the figures recounted."""

from dataclasses import replace

import pytest
from builders import Layer, finding, report, stats
from examples import REPORTS, clean
from test_tables import paired

from ampcheck.findings import Severity
from ampcheck.headline import Health, judge, measured, verdict
from ampcheck.outcome import Outcome
from ampcheck.trace import Failure, Phase

SAYS = {
    "clean": (Health.SAFE, "fp16 with loss scale 2^16 is safe here: none of 13,157 gradient elements"),
    "forward_overflow": (
        Health.UNSAFE,
        "overflows in the forward: bmm in blocks.1.attn exceeds 65504 (model.py:26)",
    ),
    "gradient_underflow": (Health.UNSAFE, "loses 66 % of the gradient elements (94 % without scaling); 2^15"),
    "planned": (Health.UNSAFE, "fp16 overflows in the forward: bmm in blocks.1.attn exceeds 65504"),
    "stand_in_loss": (Health.SAFE, "fp16 with loss scale 2^16 is safe here"),
    "bf16": (Health.SAFE, "bf16 is safe here: none of"),
    "many_layers": (Health.UNSAFE, "with loss scale 2^10 loses 2.0 % of the gradient elements (18 % without"),
    "nasty": (Health.RISK, "works here, with 11 warnings: none of"),
    "two_ranks": (
        Health.UNSAFE,
        "fp16 overflows in the forward: bmm in blocks.1.attn exceeds 65504 (model.py:26)",
    ),
    "empty": (Health.UNKNOWN, "nothing can be said"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_the_verdict_of_every_example(name: str) -> None:
    health, sentence = judge(REPORTS[name]())
    assert (health, SAYS[name][1]) == (
        SAYS[name][0],
        SAYS[name][1] if SAYS[name][1] in sentence else sentence,
    )
    assert "\n" not in verdict(REPORTS[name]())


def test_an_error_is_never_called_safe() -> None:
    site = next(iter(clean().low.sites))
    errors = finding(site), finding(site, severity=Severity.ERROR, message="the mask\nis lost")
    health, sentence = judge(replace(clean(), findings=errors))
    assert (health, sentence) == (Health.UNSAFE, "fp16 with loss scale 2^16 is not safe: the mask is lost")


def test_warnings_are_counted_and_information_is_not() -> None:
    site = next(iter(clean().low.sites))
    notes = [finding(site, severity=Severity.INFO)] * 2
    assert judge(replace(clean(), findings=tuple(notes)))[0] is Health.SAFE
    warned = replace(clean(), findings=(finding(site), *notes))
    assert judge(warned)[0] is Health.RISK
    assert "with 1 warning: none of" in verdict(warned)


def test_a_backward_that_overflows_names_the_largest_scale_that_fits() -> None:
    made = paired({"fine": [1.0], "hot": [1000.0, 1.0]}, log2_scale=8)
    health, sentence = judge(made)
    assert health is Health.RISK
    assert sentence == (
        "fp16 gradients overflow at loss scale 2^8, first mm in hot; "
        "the largest scale predicted to fit is 2^6"
    )


def test_a_backward_that_overflows_at_every_scale_is_unsafe() -> None:
    health, sentence = judge(paired({"hot": [1e6]}, log2_scale=4))
    assert (health, sentence) == (Health.UNSAFE, "fp16 gradients overflow at loss scale 2^4, first mm in hot")


def test_an_overflow_that_was_not_predicted_gets_no_advice() -> None:
    made = paired({"a": [1.0, 2.0]}, log2_scale=4)
    sites = {site: replace(held, infs=1) for site, held in made.low.sites.items()}
    broken = replace(made, low=replace(made.low, sites=sites))
    assert judge(broken) == (Health.UNSAFE, "fp16 gradients overflow at loss scale 2^4, first mm in a")


def test_gradients_wider_than_the_format_fit_no_scale() -> None:
    wide = paired({"a": [2.0**-70] * 5 + [1.0] * 5}, log2_scale=4)
    assert verdict(wide).endswith("loses 50 % of the gradient elements; no loss scale fits")
    hot = paired({"a": [2.0**-70] * 5 + [1.0] * 5, "b": [60000.0]}, log2_scale=0)
    assert "; no loss scale fits" in verdict(hot)


def test_a_nan_that_fp32_does_not_have_is_named() -> None:
    made = report([Layer("norm", op="div", line=4)])
    sites = {s: replace(h, nans=1) if s.phase is Phase.FORWARD else h for s, h in made.low.sites.items()}
    health, sentence = judge(replace(made, low=replace(made.low, sites=sites)))
    assert health is Health.UNSAFE
    assert "div in norm is the first to give NaN (model.py:4)" in sentence


def test_a_step_that_autocast_stops_says_where() -> None:
    failure = Failure("RuntimeError", "dtypes differ", "net", "index_put", "model.py", 9)
    stopped = replace(clean(), low=replace(clean().low, sites={}, failure=failure))
    assert judge(stopped) == (
        Health.UNSAFE,
        "fp16 autocast stops the step: RuntimeError at model.py:9, where FP32 runs through",
    )


def test_a_step_without_low_precision_gradients_says_so() -> None:
    made = report([Layer("a", dtype="float32")])
    assert verdict(made).endswith("is safe here: no gradient was held in fp16")
    assert stats([]).numel == 0


def test_a_re_run_that_came_out_well_outweighs_what_lies_between() -> None:
    well = {"settled": Outcome(16, grad_error=0.01, vanished=0.02)}
    for name in ("forward_overflow", "gradient_underflow"):
        made = replace(REPORTS[name](), outcomes=well, findings=())
        assert judge(made)[0] is Health.SAFE
        assert judge(replace(made, outcomes={}))[0] is Health.UNSAFE
    infinite = replace(paired({"hot": [1e6]}, log2_scale=4), outcomes=well)
    assert judge(infinite)[0] is Health.SAFE


def test_an_overflow_that_a_re_run_has_shown_to_do_no_harm_is_told_as_that() -> None:
    made = paired({"hot": [1e6, 2.0, 3e5]}, log2_scale=4)
    assert measured(made) == "measured at 2^4: nothing flushed; the first to overflow is 2^0"
    well = replace(made, outcomes={"settled": Outcome(4, grad_error=0.01)})
    told = "from 2^0 on 2 elements overflow, which no parameter's gradient shows"
    assert measured(well) == f"measured at 2^4: nothing flushed; {told}"


def test_a_re_run_that_went_wrong_is_never_called_safe() -> None:
    harmed = replace(clean(), outcomes={"settled": Outcome(16, grad_error=0.5)})
    health, sentence = judge(harmed)
    assert health is Health.UNSAFE
    assert sentence.startswith("fp16 with loss scale 2^16 is not safe: gradient error 50 %")
