"""What is advised where steps were skipped: what made their gradients infinite, and no scale that was tried."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from code_lines import line_of
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


class Clicks(nn.Module):
    """Gives probabilities; in float16 a sigmoid is 0 or 1 for sums that it is not for in FP32."""

    def __init__(self, *, wide):
        super().__init__()
        self.linear, self.wide = nn.Linear(8, 1), wide
        with torch.no_grad():
            self.linear.weight.fill_(4.0)

    def forward(self, x):
        total = self.linear(x)
        return torch.sigmoid(total.float() if self.wide else total)[:, 0]


def train(*, wide, steps=160):
    torch.manual_seed(0)
    model = Clicks(wide=wide)
    optimizer, scaler = torch.optim.Adam(model.parameters(), 1e-2), torch.amp.GradScaler("cuda")
    for _ in range(steps):
        x = torch.randn(32, 8)
        with torch.autocast("cuda", torch.float16):
            chance = model(x)
        loss = F.binary_cross_entropy(chance.float(), (torch.rand(32) < 0.5).float())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale()


@pytest.mark.parametrize("wide", [True, False])
def test_a_scale_that_fell_by_skips_is_not_advised_again_but_the_line_that_rounds(wide):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        scale = train(wide=wide)
    assert not session.watcher.broken, session.watcher.not_seen
    assert (scale < 1.0) is not wide
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert bool(errors) is not wide
    for error in errors:
        assert "init_scale" not in " ".join((error.message, *error.fix))
    if not wide:
        code, first = inspect.getsourcelines(Clicks)
        line = first + next(n for n, text in enumerate(code) if "torch.sigmoid" in text)
        assert errors[0].origin.line == line
        assert ".float()" in " ".join(errors[0].fix)


class Own(torch.optim.Optimizer):
    """An optimizer of a script's own, with a state in a precision."""

    def __init__(self, parameters, dtype, lr):
        super().__init__(parameters, {"lr": lr})
        self.dtype = dtype

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = self.state[p] or {self.key: torch.zeros_like(p, dtype=self.dtype)}
                p.sub_(group["lr"] * self.way(self.state[p][self.key], p.grad))


class Holds(Own):
    """Adam, with its second moment in a precision; a step is limited to `most` times the learning rate."""

    key = "v"

    def __init__(self, parameters, dtype, most):
        super().__init__(parameters, dtype, 2e-3)
        self.most = most

    def way(self, held, grad):
        held.copy_(held.float().mul_(0.1).addcmul_(grad, grad, value=0.9))
        return (grad / (held.float().sqrt() + 1e-8)).clamp_(-self.most, self.most)


@pytest.mark.parametrize("most", [5, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_squares_that_vanish_are_an_error_where_a_limit_keeps_the_steps_near(dtype, most):
    torch.manual_seed(0)
    model, session = (
        nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)),
        Session(Schedule(), as_cuda=True),
    )
    optimizer = Holds(model.parameters(), dtype, most)
    with session.watching():
        for _ in range(20):
            x = torch.randn(32, 8)
            with torch.autocast("cuda", torch.bfloat16):
                loss = 1e-4 * (model(x).float()[:, 0] - x.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert not session.watcher.broken, session.watcher.not_seen
    low = dtype is torch.float16
    zeros = [not held["v"].any() for held in optimizer.state.values()]
    assert any(zeros) is low
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors[:1]] == (["AMP504"] if low else [])
    if low:
        assert errors[0].sites[0].slot == "param[v]"


def shares(values, weights, *, softmax):
    """Return weighted averages; one row's weights are all as good as zero in float16, and not their sum in FP32."""
    if softmax:
        return weights.log().softmax(1) @ values
    return (weights @ values) / weights.sum(1, keepdim=True)


@pytest.mark.parametrize("softmax", [True, False])
def test_a_gradient_that_is_too_large_at_any_scale_is_where_the_scale_fell(softmax):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model, scaler = nn.Linear(8, 4), torch.amp.GradScaler("cuda", 2.0**4)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        weights = torch.rand(16, 32)
        counts = torch.ones(16, 1)
        weights[0], counts[0] = weights[0] * 1e-18, 1e-3
        for _ in range(60):
            with torch.autocast("cuda", torch.float16):
                out = shares(model(torch.randn(32, 8)), weights, softmax=softmax)
                loss = (counts * out.float()).square().mean() + (counts * out.float()).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        scale = scaler.get_scale()
    largest = (
        1e-3 / out.numel() / weights[0].sum().item()
    )  # of what the product is given back at a scale of 1
    assert largest > torch.finfo(torch.float16).max
    assert (scale < 1.0) is not softmax
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert bool(errors) is not softmax
    for error in errors[:1]:
        assert error.origin.line == line_of(shares, "weights @ values")
        assert "pushed the scale below 1" in error.message


class Signs(Own):
    """Moves weights by the sign of an average of their gradients, or by the average itself."""

    key = "average"

    def __init__(self, parameters, dtype, *, signs):
        super().__init__(parameters, dtype, 1e-3)
        self.signs = signs

    def way(self, held, grad):
        held.mul_(0.9).add_(grad.to(self.dtype), alpha=0.1)
        return (held.sign() if self.signs else held).float()


@pytest.mark.parametrize(
    ("dtype", "signs"), [(torch.float16, True), (torch.float32, True), (torch.float16, False)]
)
def test_a_head_that_stands_still_as_its_average_is_zero_is_an_error_where_the_sign_moves_it(dtype, signs):
    torch.manual_seed(0)
    heads = nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])
    before = heads[1].weight.detach().clone()
    optimizer, session = Signs(heads.parameters(), dtype, signs=signs), Session(Schedule(), as_cuda=True)
    with session.watching():
        for _ in range(20):
            x = torch.randn(32, 8)
            with torch.autocast("cuda", torch.bfloat16):
                loud, small = (head(x).float()[:, 0] for head in heads)
            loss = (loud - x.sum(1)).square().mean() + (1e-4 * small - 1e-4 * x[:, 0]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    went = (heads[1].weight - before).abs().max().item()
    assert (went > 1e-3) is (signs and dtype is torch.float32)
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == (["AMP504"] if signs and dtype is torch.float16 else [])
    for error in errors:
        assert error.sites[0].slot == "param[average]"
