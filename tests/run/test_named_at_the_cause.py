"""Errors are named at the line that causes them, where another one shows them first; the mended script has none."""

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def errors_of(train, *given):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        train(*given)
    assert not session.watcher.broken, session.watcher.not_seen
    return [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]


# -- a product that underflows, and the logarithm of it


class Logs(nn.Module):
    """A table of filters, and the logarithm of what goes through them."""

    def __init__(self, *, wide):
        super().__init__()
        self.register_buffer("table", torch.rand(16, 16) * 1e-3)
        self.out, self.wide = nn.Linear(16, 2), wide

    def forward(self, power):
        with torch.autocast("cuda", enabled=not self.wide):
            mel = power @ self.table
            logs = torch.log(mel + 1e-12)
        return self.out(logs / 10)


def logs_of_powers(*, wide):
    model = Logs(wide=wide)
    steps, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cuda", 2.0**10)
    for _ in range(6):
        power = torch.rand(32, 16) * 2e-7
        steps.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = model(power).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(steps)
        scaler.update()


def test_a_zero_that_a_product_gives_is_named_there_and_not_at_the_eps_behind_it():
    first, *_ = errors_of(lambda: logs_of_powers(wide=False))
    assert (first.code, first.origin.line) == ("AMP103", line_of(Logs.forward, "mel = "))
    assert "this line to" in first.fix[1]
    exact = torch.rand(32, 16).double() * 2e-7 @ (torch.rand(16, 16).double() * 1e-3)
    assert exact.median() > 1e-12  # far above the eps, so that FP32 at that line alone would lose it
    assert not (exact.half() != 0).any()
    assert errors_of(lambda: logs_of_powers(wide=True)) == []


# -- gradients that a penalty is made of


def penalised(*, multiplied):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    steps, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cuda", 2.0**10)
    for _ in range(6):
        x = torch.randn(64, 8, requires_grad=True)
        steps.zero_grad()
        with torch.autocast("cuda", torch.float16):
            out = model(x)
            part = out.float().mean() * 1e-6 * multiplied
            (slope,) = torch.autograd.grad(part, x, create_graph=True)
            slope = slope.float() / multiplied * 64e6
            loss = out.float().square().mean() + 10 * (slope.square().sum(1) - 1).square().mean()
        scaler.scale(loss).backward()
        scaler.step(steps)
        scaler.update()


def test_gradients_of_a_penalty_that_are_zero_are_named_where_they_are_asked_for():
    first, *_ = errors_of(lambda: penalised(multiplied=1.0))
    assert (first.code, first.origin.line) == ("AMP408", line_of(penalised, "torch.autograd.grad"))
    assert "2.0**15" in first.fix[0]
    assert errors_of(lambda: penalised(multiplied=2.0**20)) == []


# -- a scaler that is given the scale of another one


def two_scalers(*, given):
    one, two = nn.Linear(8, 4), nn.Linear(8, 4)
    steps = [torch.optim.SGD(model.parameters(), 1e-7) for model in (one, two)]
    first, second = (torch.amp.GradScaler("cuda", growth_interval=500) for _ in range(2))
    for _ in range(30):
        x = torch.randn(16, 8)
        for model, step, scaler, times in ((one, steps[0], first, 1.0), (two, steps[1], second, 300.0)):
            step.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = (model(x).float() * times).square().mean()
            scaler.scale(loss).backward()
            scaler.step(step)
        first.update()
        second.update(*([first.get_scale()] if given else []))


def test_a_scaler_that_is_given_another_ones_scale_is_named_at_its_update():
    first, *_ = errors_of(lambda: two_scalers(given=True))
    assert (first.code, first.origin.line) == ("AMP206", line_of(two_scalers, "second.update"))
    assert errors_of(lambda: two_scalers(given=False)) == []


# -- a hook in a loop over time


class Recurrent(nn.Module):
    """Limits the gradient of its state from step to step."""

    def __init__(self, limit):
        super().__init__()
        self.enter, self.again, self.leave = nn.Linear(4, 16), nn.Linear(32, 16), nn.Linear(32, 3)
        self.limit = limit

    def forward(self, x):
        state, out = torch.zeros(len(x), 16), []
        for at in range(x.shape[1]):
            here = torch.tanh(self.enter(x[:, at]))
            out.append(self.leave(torch.cat([state, here], 1)))
            state = torch.tanh(self.again(torch.cat([state, here], 1))).float()
            if state.requires_grad:
                state.register_hook(lambda grad: grad.clamp(-self.limit(), self.limit()))
        return torch.stack(out, 1)


def recurs(*, times_scale):
    scaler = torch.amp.GradScaler("cuda", 2.0**12)
    model = Recurrent(lambda: 0.01 * (scaler.get_scale() if times_scale else 1.0))
    steps = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(6):
        x, y = torch.randn(16, 8, 4), torch.randint(0, 3, (16, 8))
        steps.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
        scaler.scale(loss).backward()
        scaler.step(steps)
        scaler.update()


def test_a_hook_that_limits_scaled_gradients_is_named_where_other_lines_run_before_and_after_it():
    first, *_ = errors_of(lambda: recurs(times_scale=False))
    assert (first.code, first.origin.line) == ("AMP401", line_of(Recurrent.forward, "register_hook"))
    assert errors_of(lambda: recurs(times_scale=True)) == []


# -- a root of zero


@pytest.mark.parametrize(
    ("eps", "steps"), [(1e-8, 40), (1e-8, 200), (1e-3, 40)]
)  # in 200 the scale falls to zero
def test_a_root_whose_eps_is_zero_is_named_there_and_not_where_the_loss_is_scaled(eps, steps):
    def apart(points):
        gap = points[:, :, None] - points[:, None, :]
        return torch.sqrt(gap * gap + eps)

    def train():
        model = nn.Linear(8, 6)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-3), torch.amp.GradScaler("cuda")
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                points = model(torch.randn(16, 8))
                loss = points.float().square().mean() + F.relu(0.25 - apart(points)).float().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    errors = errors_of(train)
    assert [one.code for one in errors] == ["AMP104"] * (torch.tensor(eps).half() == 0)
    assert [one.origin.line for one in errors[:1]] == [line_of(apart, "torch.sqrt")] * bool(errors)


# -- a scale of the script's own, and what divides its gradients


class Scaling:
    """Multiplies a loss by a scale that grows, and divides gradients by it, or by what it was at first."""

    def __init__(self, optimizer, *, stale, parts=1):
        self.optimizer, self.stale, self.parts = optimizer, stale, parts
        self.scale, self.inverse, self.good = 2.0**8, 1.0 / 2.0**8, 0

    def step(self, losses):
        self.optimizer.zero_grad()
        for loss in losses:
            (loss * self.scale).backward()
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_((self.inverse if self.stale else 1.0 / self.scale) / self.parts)
        self.optimizer.step()
        self.good += 1
        if self.good % 10 == 0:
            self.scale *= 2.0


def scaled_by_hand(*, stale, parts=1):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    scaling = Scaling(torch.optim.SGD(model.parameters(), 1e-4), stale=stale, parts=parts)
    for _ in range(60):
        losses = []
        for _ in range(parts):
            x = torch.randn(16, 8)
            with torch.autocast("cuda", torch.float16):
                losses.append((model(x).float() - x.sum(1, keepdim=True)).square().mean())
        scaling.step(losses)


@pytest.mark.parametrize("parts", [1, 4])
def test_a_divisor_that_does_not_follow_the_scale_is_named(parts):
    errors = errors_of(lambda: scaled_by_hand(stale=True, parts=parts))
    assert [one.code for one in errors[:1]] == ["AMP418"]
    assert errors[0].origin.line == line_of(Scaling.step, "parameter.grad.mul_")
    assert errors_of(lambda: scaled_by_hand(stale=False, parts=parts)) == []


def test_a_mean_over_a_sum_of_losses_is_no_divisor_of_the_scale():
    """The gradients are divided by 64 at one line, always, and by the scale at another."""

    def train():
        model, scale = nn.Linear(8, 1), 64.0
        steps = torch.optim.SGD(model.parameters(), 1e-3)
        for at in range(60):
            x = torch.randn(64, 8) / 8
            with torch.autocast("cuda", torch.float16):
                loss = (model(x).float() - x.sum(1, keepdim=True)).square().sum()
            steps.zero_grad()
            (loss * scale).backward()
            for parameter in model.parameters():
                parameter.grad.div_(64.0)
                parameter.grad.div_(scale)
            steps.step()
            scale *= 2.0 if at % 20 == 19 else 1.0

    assert errors_of(train) == []


# -- one clip over the weights of two optimizers, of which one was unscaled


def one_clip(*, both):
    model, level = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), nn.Parameter(torch.zeros(()))
    net, own = torch.optim.Adam(model.parameters(), 3e-3), torch.optim.SGD([level], 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(8):
        x = torch.randn(32, 8)
        net.zero_grad()
        own.zero_grad()
        with torch.autocast("cuda", torch.float16):
            out = model(x)
        loss = (out.float()[:, 0] + level.exp() - x.sum(1)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(net)
        if both:
            scaler.unscale_(own)
        nn.utils.clip_grad_norm_([*model.parameters(), level], 1.0)
        scaler.step(net)
        scaler.step(own)
        scaler.update()


@pytest.mark.parametrize("both", [True, False])
def test_a_parameter_in_no_module_is_compared_as_it_is_before_the_second_optimizer_is_unscaled(both):
    errors = errors_of(lambda: one_clip(both=both))
    assert [one.code for one in errors] == ([] if both else ["AMP401"])
    for error in errors:
        assert error.origin.line == line_of(one_clip, "clip_grad_norm_")
