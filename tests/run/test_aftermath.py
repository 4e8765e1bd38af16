"""Harm by part, in what a step leaves behind, in later steps and in training."""

import inspect

import pytest
import torch
from torch import nn

import ampcheck.fix.apply_plan  # noqa: F401  # plans are put to work
from ampcheck.diagnose.rules.aftermath import training_apart
from ampcheck.fix.long_trial import TrainingSetup, trained
from ampcheck.run.audit import audit
from ampcheck.targets.spec import Target
from ampcheck.values.plan import TRAINS, Claim, Plan, ScalerPlan, Tried
from ampcheck.values.report import Report
from ampcheck.values.settings import Settings
from ampcheck.values.trace import Phase, Trace
from ampcheck.values.verdict import Health


def target(model, batch, loss, **more):
    return Target("case", model, [batch], loss, **more)


class Bank(nn.Module):
    """Writes features into a bank, through squares that half precision underflows; reads it in the next step."""

    def __init__(self, *, reads=True, saved=True):
        super().__init__()
        self.reads, self.body = reads, nn.Linear(8, 8)
        with torch.no_grad():
            self.body.weight.mul_(1e-3)
            self.body.bias.zero_()
        self.register_buffer("keys", torch.ones(4, 8) / 8**0.5, persistent=saved)

    def forward(self, x):
        out = self.body(x)
        kept = (out.float() @ self.keys.clone().t()).mean() if self.reads else 0.0
        with torch.no_grad():
            small = out[:4] * 1e-2
            self.keys.copy_((small / (small * small).mean(1, keepdim=True).sqrt()).float())
        return out.float().square().mean() + kept


def bank(**options):
    torch.manual_seed(0)
    return target(Bank(**options), torch.randn(16, 8), lambda model, x: model(x))


def codes(report):
    return {finding.code for finding in report.findings if finding.severity == "error"}


def test_a_buffer_that_is_not_finite_after_the_step_is_harm():
    report = audit(bank(), Settings())
    settled = report.outcomes["settled"]
    assert settled.harmed
    assert settled.state == {"keys": float("inf")}
    assert settled.next_error == float("inf")
    assert settled.grad_error < 0.01
    told = [f.code for f in report.findings] + [text for f in report.findings for text in f.follows]
    assert any("AMP506" in text for text in told)
    assert codes(report)


def test_what_nothing_reads_and_nothing_saves_is_none():
    report = audit(bank(reads=False, saved=False), Settings())
    assert not report.outcomes["settled"].harmed
    assert not codes(report)


def test_the_model_is_as_it_was_after_its_state_was_compared():
    case = bank()
    before = {name: value.clone() for name, value in case.model.state_dict().items()}
    audit(case, Settings(steps=2))
    assert all(torch.equal(before[name], value) for name, value in case.model.state_dict().items())


@pytest.mark.parametrize(("tried", "expected"), [(Tried.REFUTED, ["AMP507"]), (Tried.CONFIRMED, [])])
def test_a_refuted_training_check_is_an_error(tried, expected):
    claim = Claim(f"{TRAINS} over 5 steps", tried, "FP32: loss 2 to 1", "fp16 with the plan: 2 to nan")
    report = Report("case", "fp16", 0, Trace(), Trace(), claims=(claim,))
    found = training_apart(report)
    assert [finding.code for finding in found] == expected
    assert all(finding.severity == "error" and "2 to nan" in finding.message for finding in found)


def test_training_that_ends_in_nan_is_refuted():
    case = bank()
    plan = Plan("fp16", scaler=ScalerPlan(2.0**8))
    setup = TrainingSetup(case.model, case.batch, case.loss, None, None)
    assert trained(setup, plan, 3).tried is Tried.REFUTED
    assert trained(setup, Plan("bf16"), 3).tried is Tried.CONFIRMED


class Warmer(nn.Module):
    """A factor that grows from step to step, kept in the model: a later step is the one that overflows."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.step = nn.Linear(8, 16), nn.Linear(16, 4), 0

    def forward(self, x):
        self.step += 1
        hidden = self.inner(x) * 40.0**self.step
        return self.outer(nn.functional.layer_norm(hidden.float(), hidden.shape[-1:]))


def test_every_one_of_several_steps_is_judged():
    torch.manual_seed(0)
    case = target(Warmer(), torch.randn(8, 8), lambda model, x: model(x).float().square().mean())
    assert not codes(audit(case, Settings(steps=1)))
    report = audit(case, Settings(steps=4))
    assert report.outcomes["settled"].harmed
    assert "AMP101" in codes(report)


class Counting(nn.Module):
    """Counts on in half steps from 256, between which bfloat16 has nothing: little in one step, a lot in thirteen."""

    def __init__(self):
        super().__init__()
        self.body, self.total = nn.Linear(4, 4), torch.full((), 256.0)

    def forward(self, x):
        out = self.body(x)
        self.total = self.total.to(out.dtype) + 0.5
        return out.float().mean() * (1.0 + 0.05 * (self.total.float() - 256.0))


@pytest.mark.parametrize("steps", [1, 13])
def test_what_low_precision_leaves_behind_is_carried_on(steps):
    torch.manual_seed(0)
    model = Counting()
    case = target(model, torch.randn(8, 4), lambda model, x: model(x))
    report = audit(case, Settings(precision="bf16", steps=steps))
    assert bool(codes(report)) is (steps == 13)
    name, counted = (
        ("carried", 7) if steps == 13 else ("settled", 1)
    )  # the seventh step is the first that is harmed
    error = 1 - 1 / (1 + 0.025 * counted)  # bfloat16 stands still
    assert report.outcomes[name].grad_error == pytest.approx(error, rel=0.01)
    assert model.total.equal(torch.tensor(256.0))


class Chopped(torch.autograd.Function):
    """Hands the gradient on with a share of noise: what a bad backward does to all that lies before it."""

    @staticmethod
    def forward(ctx, x):
        ctx.low = torch.is_autocast_enabled("cpu")
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.roll(1, 0) if ctx.low else grad


class Hidden(nn.Module):
    """A small part with a wrong gradient beside a head whose gradient is far larger."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        with torch.no_grad():
            self.head.weight.mul_(1e-3)

    def forward(self, x):
        return self.head(Chopped.apply(self.stem(x)))


def test_a_part_with_a_wrong_gradient_is_not_hidden_by_the_norm_of_all():
    torch.manual_seed(0)
    x, y = torch.randn(16, 8), torch.randn(16, 4)
    case = target(Hidden(), (x, y), lambda model, batch: (model(batch[0]).float() - batch[1]).square().sum())
    report = audit(case, Settings(precision="bf16"))
    settled = report.outcomes["settled"]
    assert settled.grad_error < 0.15 < settled.parts["stem"]
    assert settled.harmed
    assert "stem" in settled.words


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_parts_of_an_ordinary_network_are_not_called_harmed(precision):
    torch.manual_seed(0)
    layers = [
        part
        for width in (3, 16, 16, 16)
        for part in (nn.Conv2d(width, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    ]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 64, 4))
    batch = torch.randn(8, 3, 8, 8), torch.randint(0, 4, (8,))
    case = target(model, batch, lambda model, b: nn.functional.cross_entropy(model(b[0]), b[1]))
    report = audit(case, Settings(precision=precision))
    assert not report.outcomes["settled"].parts
    assert not codes(report)


def cancelling_mean():
    """Return a mean less what it is in FP32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.randn(32, 8)
    with torch.no_grad():
        level = float(model(x).mean())
    return target(model, x, lambda model, x: model(x).float().mean() - level)


class Agent(nn.Module):
    """A policy and, where it is asked for, the value of a state, which the loss leaves out."""

    def __init__(self, valued):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
        self.policy, self.value = nn.Linear(24, 6), nn.Linear(24, 1) if valued else None

    def forward(self, x):
        hidden = self.body(x)
        return self.policy(hidden), self.value(hidden) if self.value is not None else torch.zeros(1)


def policy_gradient(*, valued):
    """Return a policy gradient, centred, whose entropy bonus cancels it but for a ten-thousandth."""
    torch.manual_seed(0)
    model, x, chosen, gain = Agent(valued), torch.randn(64, 10), torch.randint(0, 6, (64, 1)), torch.randn(64)
    gain = gain - gain.mean()

    def terms(model, x):
        logits, value = model(x)
        logs = nn.functional.log_softmax(logits, -1)
        return -(logs.gather(1, chosen)[:, 0] * gain).mean(), (logs.exp() * logs).sum(-1).mean(), value

    with torch.no_grad():
        gained, disorder, _ = terms(model, x)
    weight = float((1e-4 - gained) / disorder)

    def loss(model, x):
        gained, disorder, value = terms(model, x)
        return gained + weight * disorder + 0 * value.float().mean()

    return target(model, x, loss)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (cancelling_mean, {Health.SAFE, Health.RISK}),
        (lambda: policy_gradient(valued=False), {Health.SAFE, Health.RISK}),
        (lambda: policy_gradient(valued=True), {Health.PARTLY_AUDITED}),
    ],
    ids=["mean", "policy", "policy and value"],
)
def test_a_loss_that_is_a_small_difference_of_large_terms_is_no_harm_where_gradients_agree(case, words):
    case = case()
    report = audit(case, Settings(precision="bf16"))
    settled = report.outcomes["settled"]
    assert settled.loss_error > 0.15
    assert error_by_torch(case) < 0.02
    assert not settled.harmed
    assert not codes(report)
    assert report.verdict.word in words
    if Health.PARTLY_AUDITED in words:
        assert report.verdict.sentence.startswith("value.*, ")
        assert "the gradient is exactly zero in FP32 too" in report.verdict.sentence


def error_by_torch(case):
    """Return how far the gradients lie from FP32's under the bf16 autocast that torch has for a CPU."""
    grads = []
    for low in (False, True):
        case.model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            loss = case.loss(case.model, case.batch(0))
        loss.backward()
        grads.append(torch.cat([parameter.grad.flatten() for parameter in case.model.parameters()]))
    return float((grads[1] - grads[0]).norm() / grads[0].norm())


class Recurrent(nn.Module):
    """Casts its weight once in front of a long loop: the weight's gradient is added up in low precision."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 8**0.5)

    def forward(self, x):
        weight, out = self.weight.to(x.dtype), 0.0
        for _ in range(400):
            out = out + torch.tanh(x @ weight).float()
        return out / 400


def test_bits_that_only_the_backward_loses_are_placed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Recurrent(), nn.Linear(8, 1))
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    case = target(
        model, torch.randn(1, 8) * torch.ones(4, 1), lambda model, x: (model(x).float() - 3).square().mean()
    )
    report = audit(case, Settings(precision="bf16"))
    (found,) = [finding for finding in report.findings if finding.code == "AMP501"]
    assert (found.origin.module, found.origin.op, found.origin.phase) == ("1", "add", Phase.BACKWARD)
    lines, start = inspect.getsourcelines(Recurrent)
    assert "torch.tanh(x @ weight)" in lines[found.origin.line - start]
    assert "lost in the backward" in found.message


def test_what_an_operation_saves_for_its_backward_is_not_its_result():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 1))
    case = target(model, torch.randn(8, 3, 4, 4), lambda model, x: model(x).float().square().mean())
    report = audit(case, Settings(precision="bf16", verify=False))
    norms = [site for site in report.errors if "batch_norm" in site.op and site.phase is Phase.FORWARD]
    assert {site.slot for site in norms} == {"output[0]"} or {site.slot for site in norms} == {"output"}


def test_a_plans_scale_is_advised_from_the_gradients_that_it_leaves_in_low_precision():
    class Squares(nn.Module):
        def forward(self, x):
            return (x * 300).pow(2).sum(-1, keepdim=True)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Squares(), nn.Linear(1, 1))
    case = target(model, torch.randn(16, 8), lambda model, x: model(x).float().abs().mean() * 1e-2)
    report = audit(case, Settings())
    scale = report.plan.scaler
    assert report.plan.fp32_modules
    assert scale is not None
    assert not report.outcomes["planned"].harmed
    assert scale.init_scale >= 1.0


def test_no_scaler_is_planned_for_weights_in_half_precision():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).half()
    case = target(model, torch.randn(4, 8).half(), lambda model, x: model(x).float().square().mean())
    report = audit(case, Settings())
    assert report.plan.scaler is None
    assert any("model.float()" in sentence for sentence in report.advice)
