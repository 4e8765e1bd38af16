"""Plans: tried before they are told, healthy when applied, and saved without loss."""

import re
from math import log2

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ampcheck import check
from ampcheck.errors import ReportError
from ampcheck.fix.verify import Lab
from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.step import Step
from ampcheck.values.findings import Severity
from ampcheck.values.outcome import BETTER, SHOWN_UNDERFLOW, Outcome
from ampcheck.values.plan import Plan, ScalerPlan, Tried


class Squares(nn.Module):
    def forward(self, x):
        return (x * x).mean(-1, keepdim=True).sqrt()


class Model(nn.Module):
    """One module squares numbers of some hundreds; all others are harmless."""

    def __init__(self, size=300.0):
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(8, 16), Squares(), nn.Linear(16, 1)
        self.size = size

    def forward(self, x):
        hidden = self.stem(x) * self.size
        return self.head(hidden / self.norm(hidden))


def loss(model, batch):
    return model(batch).square().mean()


def audit(size):
    torch.manual_seed(0)
    model = Model(size)
    return model, torch.randn(32, 8), check(model, torch.randn(32, 8), loss)


def test_the_culprit_is_kept_in_fp32_and_the_plan_was_tried():
    _, _, report = audit(600.0)
    assert report.findings[0].severity is Severity.ERROR
    assert report.findings[0].kind == "forward-overflow"
    assert report.findings[0].origin.module == "norm"
    assert report.plan.fp32_modules == ("norm",)
    assert {verdict.tried for verdict in report.claims} == {Tried.CONFIRMED}
    assert report.claims[0].claim == "keep norm in FP32"


def test_applying_the_plan_and_auditing_again_is_clean():
    model, batch, report = audit(600.0)
    again = check(report.plan.apply(model), batch, loss)
    assert again.findings == () or again.worst is not Severity.ERROR
    assert again.plan.fp32_modules == ()


def test_the_applied_plan_trains_as_fp32_does():
    model, batch, report = audit(600.0)
    expected = loss(model, batch)
    plan = report.plan
    plan.apply(model)
    scaler = plan.grad_scaler("cpu")
    with cuda_casting(), plan.autocast("cpu"):
        value = loss(model, batch)
    scaler.scale(value).backward()
    assert scaler.get_scale() == plan.scaler.init_scale
    assert torch.allclose(value, expected, rtol=1e-2)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_a_healthy_model_gets_no_finding_and_no_fp32():
    _, _, report = audit(1.0)
    assert report.findings == ()
    assert (report.plan.precision, report.plan.fp32_modules, report.plan.fp32_lines) == ("fp16", (), ())
    assert 1.0 <= report.plan.scaler.init_scale < 2.0**report.log2_scale  # with room below what overflowed
    assert report.claims == ()  # the scale changes nothing in this step, so nothing is claimed of it
    assert not any(outcome.harmed for outcome in report.outcomes.values())


plans = st.builds(
    Plan,
    st.sampled_from(["fp16", "bf16", "fp32"]),
    st.lists(st.text(), max_size=3).map(tuple),
    st.lists(st.text(), max_size=3).map(tuple),
    st.none()
    | st.builds(
        ScalerPlan,
        st.floats(allow_nan=False),
        st.floats(allow_nan=False),
        st.floats(0.1, 0.9),
        st.integers(1, 9999),
    ),
)


@given(plans)
def test_a_plan_survives_being_saved(plan):
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    assert not {"NaN", "Infinity"} & set(re.findall(r": (-?\w+)", text))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ampcheck_plan": 99}'])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(ReportError, match="expected a plan"):
        Plan.from_json(text)


class Sums(nn.Module):
    """Adds half-precision messages into an FP32 buffer, which torch refuses."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        summed = torch.zeros(4, 16).index_add_(0, torch.arange(32) % 4, self.stem(x))
        return self.head(summed)


def test_where_the_step_raised_the_scale_is_advised_by_the_gradients_that_the_plan_has():
    torch.manual_seed(0)
    report = check(Sums(), torch.randn(32, 8), loss)
    assert report.plan.fp32_modules == ("stem",)
    scale = f"GradScaler(init_scale=2.0**{round(log2(report.plan.scaler.init_scale))})"
    told = [sentence for sentence in report.advice if "GradScaler" in sentence]
    assert told[0].removeprefix("with the plan: ").startswith(f"{scale}: every gradient fits")


def test_a_scale_is_judged_with_the_same_places_in_fp32():
    torch.manual_seed(0)
    model, batch = Model(600.0), torch.randn(32, 8)
    report = check(model, batch, loss)
    unscaled = Lab(Step(model, batch, loss)).trial(torch.float16, 0, report.plan.fp32_modules)
    claim = report.claims[-1]
    assert claim.claim.startswith("start the loss scale at ")
    assert claim.before.startswith(f"without a loss scale: {unscaled.words}")
    assert not unscaled.harmed  # it is the place in FP32 that heals, and the claim on it says so
    assert report.claims[0].before == report.outcomes["settled"].words != unscaled.words


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            (0.5, 0.2),
            (0.01, 0.0),
            ("50 %, 20 % of the gradient underflows", "1.0 %, 0 % of the gradient underflows"),
        ),
        (
            (0.12, 2e-6),
            (0.12, 0.0),
            ("12 %, <0.01 % of the gradient underflows", "12 %, 0 % of the gradient underflows"),
        ),
        ((0.12, 0.0), (0.12, 0.0), ("12 %", "12 %: same result in this step")),
        ((0.12, 0.0), (0.44, 0.0), ("12 %", "44 %")),
    ],
)
def test_what_differs_between_two_runs_is_in_their_words(before, after, told):
    one, other = (Outcome(0, grad_error=error, underflow=lost) for error, lost in (before, after))
    assert one.compared_with(other) == tuple(f"gradient error {words}" for words in told)


@pytest.mark.parametrize("factor", [1e-3, 1.0, 3e4, 3e5, 1e6])
def test_the_plans_scale_is_the_one_that_the_sentences_are_about(factor):
    torch.manual_seed(0)
    model, batch = Model(1.0), torch.randn(32, 8)
    report = check(model, batch, lambda model, batch: factor * loss(model, batch))
    exponent = round(log2(report.plan.scaler.init_scale))
    assert report.plan.scaler.init_scale == 2.0**exponent
    told = [sentence for sentence in report.advice if sentence.startswith("GradScaler")]
    assert told[0].startswith(f"GradScaler(init_scale=2.0**{exponent}):")
    # A scale of 1 is none, and of one that changes nothing in this step nothing is claimed.
    claims = [verdict.claim for verdict in report.claims if "loss scale" in verdict.claim]
    unscaled, settled = report.outcomes["unscaled"], report.outcomes["settled"]
    loses = unscaled.underflow > settled.underflow + SHOWN_UNDERFLOW
    helps = unscaled.harmed or loses or unscaled.worst > BETTER * settled.worst
    assert claims == ([f"start the loss scale at 2^{exponent}"] if exponent and helps else [])
