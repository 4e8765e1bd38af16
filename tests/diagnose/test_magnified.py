"""A step that only magnifies rounding is told apart from one that loses bits in some place."""

import copy
from dataclasses import replace

import pytest
import torch
from builders import answer, finding
from examples import clean
from hypothesis import given
from hypothesis import strategies as st
from judge import rounded
from torch import nn
from torch.nn import functional

from ampcheck import check
from ampcheck.diagnose.rules import diagnose
from ampcheck.fix.verify import Lab
from ampcheck.observe.reference.lineage import error_jumps
from ampcheck.observe.step import Step
from ampcheck.renderers.next_step import next_step
from ampcheck.renderers.terminal import render as terminal
from ampcheck.run.audit import audit
from ampcheck.targets.spec import Target
from ampcheck.targets.weights import RANDOM_WEIGHTS
from ampcheck.values.findings import Severity
from ampcheck.values.formats import BF16, FP16, FP32
from ampcheck.values.outcome import AGREES, HARM_ERROR, MAGNIFIES, Outcome, magnified
from ampcheck.values.settings import Settings
from ampcheck.values.trace import PairError, Phase, Site
from ampcheck.values.verdict import Health

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Chaos(nn.Module):
    """Layers that stretch every difference, as deep networks can at random initialisation."""

    def __init__(self, stretch):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(6))
        self.head, self.stretch = nn.Linear(24, 3), stretch

    def forward(self, x):
        for layer in self.layers:
            x = torch.sin(self.stretch * layer(x))
        return self.head(x)


def loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def made(stretch, seed=0):
    torch.manual_seed(seed)
    return Chaos(stretch), (torch.randn(32, 24), torch.randint(3, (32,))), loss


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("stretch", [1.0, 8.0])
def test_the_yardstick_is_what_a_plain_loop_measures_and_leaves_nothing(stretch, precision):
    model, batch, _ = made(stretch)
    before = copy.deepcopy(model.state_dict())
    mine = Lab(Step(model, batch, loss)).rounded(DTYPES[precision])
    assert mine.grad_error == pytest.approx(rounded(lambda: made(stretch), precision), rel=1e-3)
    assert mine.grad_error > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_other_precision_is_held_against_its_own_yardstick():
    report = check(*made(5.0))
    other, rounding_baseline = report.outcomes["bf16"], report.outcomes["rounded_other"]
    assert not report.outcomes["settled"].harmed
    assert other.harmed
    assert other.magnifies(rounding_baseline)
    assert rounding_baseline.grad_error == pytest.approx(rounded(lambda: made(5.0), "bf16"), rel=1e-3)
    assert "bf16 is inconclusive on these weights" in report.advice[-1]
    assert "bf16: inconclusive: gradient error" in terminal(report)


@pytest.mark.parametrize("precision", DTYPES)
def test_what_magnifies_rounding_is_a_risk_without_a_culprit(precision):
    report = check(*made(12.0), settings=Settings(precision))
    settled, rounding_baseline = report.outcomes["settled"], report.outcomes["rounded"]
    assert settled.harmed
    assert settled.grad_error < MAGNIFIES * rounding_baseline.grad_error
    health, sentence = answer(report)
    assert health is Health.RISK
    assert "the model magnifies any rounding" in sentence
    assert report.worst is Severity.WARNING
    assert (report.plan.precision, report.plan.fp32_modules, report.plan.fp32_lines) == (precision, (), ())
    assert (report.plan.scaler is None) == (precision == "bf16")
    assert next_step(report) == "train beside FP32: --verify-steps 100"
    random = replace(report, notes=(*report.notes, RANDOM_WEIGHTS))
    assert next_step(random) == "audit trained weights: --weights FILE"
    assert f"whether {precision} harms training cannot be seen" in report.advice[-1]
    assert "--weights FILE" not in report.advice[-1]


def test_other_weights_are_advised_where_these_are_random():
    model, batch, loss_of = made(12.0)
    report = audit(Target("chaos", model, [batch], loss_of, notes=(RANDOM_WEIGHTS,)), Settings("bf16"))
    assert "at these weights; audit trained ones (--weights FILE), or train" in report.advice[-1]


def test_one_place_that_loses_bits_is_no_magnification():
    class Turned(Chaos):
        def forward(self, x):
            return self.head(torch.sin(self.layers[0](x) + 3000))  # counted in steps of 2

    torch.manual_seed(0)
    report = check(Turned(1.0), (torch.randn(32, 24), torch.randint(3, (32,))), loss)
    assert report.outcomes["settled"].harmed
    assert not magnified(report.outcomes)
    assert answer(report)[0] is Health.UNSAFE


class Shifted(Chaos):
    """Turns angles near a large number, between which half precision has little: the larger, the less."""

    def forward(self, x):
        return self.head(torch.sin(self.layers[0](x) + self.stretch))


@pytest.mark.parametrize(
    ("shift", "health"), [(20.0, Health.SAFE), (280.0, Health.RISK), (3000.0, Health.UNSAFE)]
)
def test_what_rounding_the_weights_does_not_explain_is_never_safe(shift, health):
    """A tenth of the gradient is no harm by itself, but hundreds of times what rounding alone does."""
    torch.manual_seed(0)
    case = Shifted(shift), (torch.randn(32, 24), torch.randint(3, (32,))), loss
    report = check(*case)
    settled = report.outcomes["settled"]
    assert settled.grad_error == pytest.approx(plain_error(*case), rel=0.05)
    assert answer(report)[0] is health
    if health is Health.RISK:
        assert 0.05 < settled.grad_error < HARM_ERROR
        (found,) = report.findings
        assert (found.code, found.severity, found.origin.op) == ("AMP501", Severity.WARNING, "add")
        assert found.numbers["rounded"] == report.outcomes["rounded"].error < 0.001


def plain_error(model, batch, loss):
    """Return the gradient error of fp16 autocast by plain torch, at torch's first loss scale."""
    grads = []
    for low in (False, True):
        with torch.autocast("cpu", torch.float16, enabled=low):
            value = loss(model, batch)
        grads.append(
            torch.autograd.grad(value * 2.0**16, [*model.layers[0].parameters(), *model.head.parameters()])
        )
    wide, half = (torch.cat([one.flatten() for one in some]).double() for some in grads)
    return float((half - wide).norm() / wide.norm())


@given(st.floats(0, 0.2), st.floats(0, 0.2))
def test_the_warning_is_a_comparison_with_the_baseline(error, rounded_error):
    outcomes = {"settled": Outcome(16, grad_error=error), "rounded": Outcome(16, grad_error=rounded_error)}
    report = replace(clean(), outcomes=outcomes, findings=())
    explained = error <= MAGNIFIES * rounded_error
    levels = [(one.code, one.severity) for one in diagnose(report)]
    if error <= AGREES or (explained and error <= HARM_ERROR):
        assert not levels
    else:
        severity = Severity.WARNING if explained or error <= HARM_ERROR else Severity.ERROR
        assert levels == [("AMP501", severity)]


errors = st.floats(0, 10)


@given(errors, errors, errors, errors, errors)
def test_only_an_error_that_the_yardstick_shares_is_magnified(grad, value, other, other_value, underflow):
    one = Outcome(0, grad_error=grad, loss_error=value, underflow=underflow)
    rounding_baseline = Outcome(0, grad_error=other, loss_error=other_value)
    if one.magnifies(rounding_baseline):
        assert one.harmed
        assert underflow <= HARM_ERROR
        assert grad <= max(HARM_ERROR, MAGNIFIES * other)
        assert value <= max(HARM_ERROR, MAGNIFIES * other_value)
        larger = Outcome(0, grad_error=other + 1, loss_error=other_value + 1)
        assert one.magnifies(larger)
    assert not one.magnifies(None)
    assert not replace(one, loss_nonfinite=True).magnifies(rounding_baseline)
    assert not one.magnifies(replace(rounding_baseline, grads_nonfinite=("w",)))


def test_an_error_finding_outweighs_the_yardstick():
    outcomes = {"settled": Outcome(0, grad_error=0.5), "rounded": Outcome(0, grad_error=0.5)}
    report = replace(clean(), outcomes=outcomes)
    assert answer(report)[0] is Health.RISK
    site = next(iter(report.low.sites))
    proved = replace(report, findings=(finding(site, severity=Severity.ERROR),))
    assert answer(proved)[0] is Health.UNSAFE


@pytest.mark.parametrize(("dtype", "fmt"), [("float16", FP16), ("bfloat16", BF16)])
def test_no_error_begins_where_fp32_holds_noise_itself(dtype, fmt):
    site = Site("norm", "native_batch_norm", "output", Phase.FORWARD, dtype)

    def begun(error):
        pair = PairError(sampled=1, live=1, error_squares=error**2, reference_squares=1.0)
        return bool(error_jumps({site: ()}, {site: pair}, dtype))

    noise = fmt.epsilon / FP32.epsilon  # the error of a result all of whose bits FP32 has lost, too
    assert begun(0.06)
    assert begun(noise / 100)
    assert not begun(noise)


def test_a_constant_channel_is_not_where_an_error_begins():
    """Batch norm of a constant makes noise of noise: off by hundreds of times, and FP32 knows no better."""

    class Dead(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.scale = nn.Linear(8, 16), nn.Linear(8, 16)
            self.norm, self.last = nn.BatchNorm1d(16), nn.Linear(16, 2)

        def forward(self, x):
            scale = self.scale(x) + 4
            constant = self.first(torch.ones_like(x)) * scale / scale
            return self.last(self.norm(constant))

    torch.manual_seed(0)
    report = check(Dead(), (torch.randn(16, 8), torch.randint(2, (16,))), loss)
    wild = [site for site, pair in report.errors.items() if pair.relative_rms > 410]
    assert {site.module for site in wild if site.phase is Phase.FORWARD} >= {"norm"}
    assert not any(jump.site.module == "norm" for jump in report.error_jumps)
