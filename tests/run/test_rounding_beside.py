"""In scripts too a part is held against what rounding weights alone does, and state is compared after a step."""

import pytest
import torch
from torch import nn

from ampcheck.fix.verify import Lab
from ampcheck.observe.step import Step
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


class Angles(nn.Module):
    """A small branch that is fed positions in half precision, beside a healthy one."""

    def __init__(self, rough=True):
        super().__init__()
        self.rough = rough
        self.time, self.main = nn.Linear(32, 16), nn.Linear(8, 16)

    def forward(self, x, t):
        angle = t[:, None].to(self.main(x).dtype if self.rough else t.dtype) * torch.linspace(0.1, 1.0, 16)
        wave = torch.cat([angle.cos(), angle.sin()], 1)
        return self.main(x) * (1 + 0.01 * self.time(wave.float()))


class Chaos(nn.Module):
    """A network that turns any rounding into another result."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = self.first(x).float()
        for _ in range(9):
            h = torch.sin(3.0 * h)
        return self.last(h)


class Bank(nn.Module):
    """Holds what its forward computes in half precision: a queue, or statistics."""

    def __init__(self, gain, *, saved):
        super().__init__()
        self.layer, self.gain = nn.Linear(8, 8), gain
        self.register_buffer("keys", torch.ones(16, 8), persistent=saved)

    def forward(self, x):
        h = self.layer(x)
        with torch.no_grad():
            self.keys[:] = (h * self.gain * self.gain).float()
        return h


def audit(model, given, loss, dtype=torch.bfloat16, lr=0.0, steps=4):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        optimizer = torch.optim.SGD(model.parameters(), lr)
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype):
                value = loss(model(*given))
            value.backward()
            optimizer.step()
    return session.report("script.py")


def angles(rough):
    torch.manual_seed(0)
    given = (torch.randn(64, 8), torch.randint(1000, 4000, (64,)).float())
    return audit(Angles(rough), given, lambda out: (out.float() - 1.0).square().mean())


def chaos():
    torch.manual_seed(0)
    return Chaos(), (torch.randn(64, 8),), lambda out: out.float().square().mean()


def test_a_part_whose_gradient_is_garbage_is_an_error_at_its_line_however_small_it_is():
    report = angles(rough=True)
    assert report.verdict.word is Health.UNSAFE
    settled, rounded = report.outcomes["settled"], report.outcomes["rounded"]
    assert settled.grad_error < 0.15 < settled.parts["model.time"]
    assert rounded.grad_error < 0.05
    (error,) = (finding for finding in report.findings if finding.severity is Severity.ERROR)
    assert (error.code, error.origin.module) == ("AMP501", "model")


def test_the_same_part_fed_in_fp32_is_well():
    report = angles(rough=False)
    assert report.verdict.word is Health.SAFE
    assert "rounded" not in report.outcomes


def test_a_network_that_magnifies_any_rounding_is_inconclusive_and_no_error():
    report = audit(*chaos())
    assert report.outcomes["settled"].error > 0.15
    assert report.verdict.word is Health.RISK
    assert "magnifies any rounding" in report.verdict.sentence
    assert not [finding for finding in report.findings if finding.severity is Severity.ERROR]


def test_rounding_beside_a_script_comes_to_what_running_it_again_comes_to():
    model, given, loss = chaos()
    beside = audit(model, given, loss).outcomes["rounded"]
    again = Lab(Step(model, given, lambda m, b: loss(m(*b)))).rounded(torch.bfloat16)
    assert beside.grad_error == pytest.approx(again.grad_error, rel=1e-3)
    assert beside.loss_error == pytest.approx(again.loss_error, rel=1e-2)


@pytest.mark.parametrize(
    ("gain", "saved", "word"),
    [
        (1e3, True, Health.UNSAFE),
        (1e3, False, Health.PARTLY_AUDITED),
        (1.0, True, Health.RISK),  # nothing is wrong but that fp16 has no scale
    ],
)
def test_what_a_step_leaves_in_a_buffer_counts(gain, saved, word):
    torch.manual_seed(0)
    given = (torch.randn(16, 8),)
    report = audit(Bank(gain, saved=saved), given, lambda out: out.float().square().mean(), torch.float16)
    assert report.verdict.word is word
    assert (gain > 1.0) == ("model.keys" in str(report.verdict.sentence) + str(report.findings))


def scaled_by_hand(*, divided_first, init=1024.0, gain=1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(16, 8)).float().square().mean() * gain
            (loss * init).backward()
            if divided_first:
                for parameter in model.parameters():
                    parameter.grad.div_(init)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if not divided_first:
                for parameter in model.parameters():
                    parameter.grad.div_(init)
            optimizer.step()
    return session.report("script.py")


def test_gradients_clipped_before_a_scale_of_the_scripts_own_is_divided_away_are_an_error():
    report = scaled_by_hand(divided_first=False)
    assert report.verdict.word is Health.UNSAFE
    assert [finding.code for finding in report.findings if finding.severity is Severity.ERROR] == ["AMP401"]
    assert scaled_by_hand(divided_first=True).verdict.word is Health.SAFE


def test_infinities_that_a_script_divides_by_its_scale_are_the_backwards():
    report = scaled_by_hand(divided_first=True, init=2.0**20, gain=100.0)
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    assert report.verdict.word is Health.UNSAFE
    assert [error.code for error in errors] == ["AMP202"]


def penalised(*, divides):
    """Train a critic whose loss holds gradients of a scaled score."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 1))
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        optimizer = torch.optim.Adam(critic.parameters(), 1e-4)
        scaler = torch.amp.GradScaler("cuda", init_scale=16.0)
        for _ in range(4):
            optimizer.zero_grad()
            real = torch.randn(16, 4).requires_grad_()
            with torch.autocast("cuda", torch.float16):
                score = critic(real).sum()
            slope = torch.autograd.grad(scaler.scale(score), real, create_graph=True)[0]
            if divides:
                slope = slope / scaler.get_scale()
            loss = score.float().square() * 1e-3 + ((slope.norm(2, dim=1) - 1) ** 2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return session.report("script.py")


def test_a_penalty_on_gradients_that_hold_the_scale_is_an_error_and_one_on_true_gradients_is_none():
    right, wrong = penalised(divides=True), penalised(divides=False)
    assert right.verdict.word is Health.SAFE
    assert right.outcomes["settled"].grad_error < 0.02
    assert wrong.verdict.word is Health.UNSAFE


class Average(nn.Module):
    """A running mean that the forward writes, held in half precision or in FP32."""

    def __init__(self, dtype, decay):
        super().__init__()
        self.layer, self.decay = nn.Linear(8, 8), decay
        self.register_buffer("mean", torch.randn(8).to(dtype))

    def forward(self, x):
        h = self.layer(x)
        with torch.no_grad():
            self.mean.mul_(self.decay).add_(h.detach().mean(0).to(self.mean.dtype), alpha=1 - self.decay)
        return h


@pytest.mark.parametrize(
    ("dtype", "decay", "word"),
    [
        (torch.bfloat16, 0.9995, Health.UNSAFE),
        (torch.bfloat16, 0.5, Health.SAFE),
        (torch.float32, 0.9995, Health.SAFE),
    ],
)
def test_a_buffer_in_half_precision_whose_changes_are_rounded_away_is_an_error(dtype, decay, word):
    torch.manual_seed(0)
    report = audit(Average(dtype, decay), (torch.randn(16, 8),), lambda out: out.float().square().mean())
    assert report.verdict.word is word
    if word is Health.UNSAFE:
        (error,) = (finding for finding in report.findings if finding.severity is Severity.ERROR)
        assert (error.code, error.origin.slot) == ("AMP504", "param[mean]")


@pytest.mark.parametrize(("backward_by", "wrong"), [("own", False), ("other", True)])
def test_gradients_that_another_scaler_multiplied_are_an_error_and_two_scalers_in_order_are_none(
    backward_by, wrong
):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        models = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)) for _ in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in models]
        scalers = [torch.amp.GradScaler("cuda", init_scale=2.0**power) for power in (8, 12)]
        for _ in range(4):
            batch = torch.randn(16, 8)
            for number, model in enumerate(models):
                optimizers[number].zero_grad()
                with torch.autocast("cuda", torch.float16):
                    loss = model(batch).float().square().mean()
                if backward_by == "other":
                    scalers[number].scale(torch.zeros(()))  # as a scaler of its own would have been used
                scalers[number if backward_by == "own" else 1].scale(loss).backward()
            for optimizer, scaler in zip(optimizers, scalers, strict=True):
                scaler.step(optimizer)
                scaler.update()
    errors = [found for found in session.report("script.py").findings if found.severity is Severity.ERROR]
    assert bool(errors) is wrong
    if wrong:  # 2^12 over 2^8
        assert errors[0].code == "AMP418"
        assert "they are 16 times as large as they should be" in errors[0].message
        assert any("AMP501" in follower for follower in errors[0].follows)


class Clock(nn.Module):
    """Sines of hours since long ago, with periods of a day and less: frozen, as they are known."""

    def __init__(self, *, wide):
        super().__init__()
        self.angle, self.wide = nn.Linear(1, 6), wide
        with torch.no_grad():
            self.angle.weight.copy_(2 * torch.pi / torch.tensor([24.0, 24.0, 12.0, 12.0, 8.0, 8.0])[:, None])
        self.angle.weight.requires_grad_(False)

    def forward(self, hours):
        with torch.autocast("cuda", torch.float16, enabled=not self.wide):
            return torch.sin(self.angle(hours))


def learns_hours(*, wide):
    torch.manual_seed(0)
    model = nn.Sequential(Clock(wide=wide), nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer, scaler = torch.optim.Adam(model.parameters(), 1e-3), torch.amp.GradScaler("cuda", 2.0**10)
    for _ in range(8):
        hours = 17520 * torch.rand(128, 1)
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.mse_loss(model(hours), torch.cos(2 * torch.pi * hours / 24))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("wide", [False, True])
def test_what_one_module_loses_is_no_noise_of_the_model_though_rounding_its_weights_alone_moves_it(wide):
    """Rounding weights of 2 pi / 24 to fp16 turns the angles of hours near 17,520 by more than half a radian."""
    turned = 17520 * (torch.tensor(2 * torch.pi / 24).half().float() - 2 * torch.pi / 24).abs()
    assert float(turned) > 0.5
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        learns_hours(wide=wide)
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert bool(errors) is not wide
    if errors:
        assert errors[0].code == "AMP501"
        assert errors[0].sites[0].module == "model.0.angle"
        assert (
            "rounding only the FP32 weights but not those of model.0.angle moves the gradient by"
            in errors[0].message
        )
