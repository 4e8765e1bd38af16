"""Gradients that a script asks autograd for: where they are far off, what they are used for was not judged."""

import pytest
import torch
from torch import nn

from ampcheck.observe.reference.returned import USE, Returned
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.loop import Kind
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

#: Of `torch.autograd.grad` below.
LINE = 78


def moved(use, low, wide):
    """Return the places that are told of when numbers are moved by a gradient, half precision's and FP32's."""
    grads, told = {}, []
    seen = Returned(lambda one: grads.get(id(one)), lost=lambda *said: told.append(said))
    grad = torch.tensor(low, requires_grad=True)
    grads[id(grad)] = torch.tensor(wide)
    seen.note([grad])
    for name, args, alpha in use(grad, torch.ones(len(low))):
        seen.follow(name, args, {"alpha": alpha}, torch.zeros(len(low)))
    seen.missed()
    zeros = {place for kind, place in told if kind is Kind.RETURNED_ZEROS}
    low, wide = torch.tensor(low), torch.tensor(wide)
    assert bool(zeros) is bool(2 * wide[low == 0].square().sum() > wide.square().sum())
    return [place for kind, place in told if kind is Kind.LOST_GRAD]


def subtracted(grad, numbers):
    yield "sub", (numbers, grad), 0.1


def each_subtracted(grad, numbers):
    yield "_foreach_sub_", ([numbers, numbers], [numbers, grad]), 0.1


def hardly_subtracted(grad, numbers):
    yield "sub", (numbers, grad), 1e-4


def added_up(grad, _):
    yield "add", (grad, grad), 1


@pytest.mark.parametrize(
    ("use", "low", "told"),
    [
        (subtracted, [0.0, 0.0], True),
        (subtracted, [0.0, 1.0], False),  # most of it is there
        (subtracted, [1.0, 0.9], False),
        (each_subtracted, [0.0, 0.0], True),
        (hardly_subtracted, [0.0, 0.0], False),
        (added_up, [0.0, 0.0], False),
    ],
)
def test_what_moves_numbers_and_is_zero_is_told_of(use, low, told):
    assert bool(moved(use, low, [0.5, 1.0])) is told


def trained(size, scale=1.0):
    """Adapt a vector by a gradient of that size before each step; return the report and the vector."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        for _ in range(6):
            x, y = torch.randn(32, 4), torch.randn(32, 1)
            context = torch.zeros(1, 2, requires_grad=True)
            with torch.autocast("cuda", torch.float16):
                inner = size * model(torch.cat([x, context.expand(32, 2)], 1)).float().mean() * scale
                (grad,) = torch.autograd.grad(inner, context, create_graph=True)
                moved = context - grad / (size * scale)
                out = model(torch.cat([x, moved.expand(32, 2)], 1))
            optimizer.zero_grad()
            scaler.scale((out.float() - y).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    return session.report("script.py"), moved.detach()


@pytest.mark.parametrize(
    ("size", "scale", "lost"), [(1e-8, 1.0, True), (1.0, 1.0, False), (1e-8, 2.0**24, False)]
)
def test_an_inner_gradient_that_underflows_is_not_safe(size, scale, lost):
    report, moved = trained(size, scale)
    assert bool((moved == 0).all()) is lost
    assert any(what.startswith(USE) for what in report.low.not_audited) is lost
    assert (report.verdict.word is Health.SAFE) is not lost
    assert not lost or "test_returned.py" in " ".join(report.verdict.coverage.gaps)
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert [(one.code, one.sites[0].line) for one in errors[:1]] == ([("AMP408", LINE)] if lost else [])


def test_how_far_off_is_measured_over_all_of_a_line():
    low, wide = torch.tensor([1.0, 0.0, float("nan")]), torch.tensor([1.0, 2.0, float("nan")])
    seen = Returned(lambda _: wide)
    seen.note([low, None])
    (sums,) = (one.tolist() for one in seen._found.values())
    assert sums == [4.0, 5.0, 4.0]  # of the error, of FP32, and of FP32 where nothing is left
    assert "89 %" in next(iter(seen.missed()))
    seen = Returned(lambda _: None)
    seen.note([torch.ones(3)])
    assert not seen.missed()


def weighed(times, steps=60):
    """Train with samples weighed by slopes of a second loss; return the report and how many weigh nothing."""
    torch.manual_seed(0)
    truth = torch.randn(6, 1)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
        optimizer, scaler = torch.optim.Adam(model.parameters(), 1e-2), torch.amp.GradScaler("cuda", 2.0**10)
        for _ in range(steps):
            x, good = torch.randn(32, 6), torch.randn(32, 6)
            eps = torch.zeros(32, requires_grad=True)
            with torch.autocast("cuda", torch.float16):
                each = (model(x).float() - x @ truth).square()[:, 0]
            held = list(model.parameters())
            grads = torch.autograd.grad((each * eps).sum(), held, create_graph=True)
            ahead = dict(zip(("0.weight", "0.bias", "2.weight", "2.bias"), held, strict=True))
            ahead = {name: one - 1e-9 * grad for (name, one), grad in zip(ahead.items(), grads, strict=True)}
            with torch.autocast("cuda", torch.float16):
                outer = (
                    (torch.func.functional_call(model, ahead, (good,)).float() - good @ truth).square().mean()
                )
            (slope,) = torch.autograd.grad(outer * times, eps)
            weight = (-slope).clamp(min=0)
            weight = weight / weight.sum() if weight.sum() > 0 else weight
            with torch.autocast("cuda", torch.float16):
                loss = (weight * (model(x).float() - x @ truth).square()[:, 0]).sum()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return session.report("script.py"), int((weight == 0).sum())


def test_a_loss_that_is_zero_for_want_of_slopes_has_not_been_learned():
    report, zeros = weighed(1.0)
    assert zeros == 32
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert errors[0].code == "AMP408"
    assert report.verdict.word is Health.UNSAFE
    report, zeros = weighed(2.0**14)
    assert zeros < 32
    assert [one for one in report.findings if one.severity is Severity.ERROR] == []


def test_zeros_of_one_call_are_told_of_beside_the_larger_gradients_of_another():
    """As of two losses whose gradients a balancer asks for at one line."""
    told, wide = [], {}
    seen = Returned(lambda one: wide.get(id(one)), lost=lambda *said: told.append(said))
    grads = [torch.tensor(low, requires_grad=True) for low in ([1.0, 2.0], [0.0, 0.0])]
    for grad, high in zip(grads, ([1.0, 2.0], [1e-8, 2e-8]), strict=True):
        wide[id(grad)] = torch.tensor(high)
    for calls, lost in (([[grads[0]], [grads[1]]], True), ([grads], False)):
        told.clear()
        for call in calls:
            seen.note(call)
        seen.missed()
        assert bool([place for kind, place in told if kind is Kind.RETURNED_ZEROS]) is lost
        seen = Returned(lambda one: wide.get(id(one)), lost=lambda *said: told.append(said))
