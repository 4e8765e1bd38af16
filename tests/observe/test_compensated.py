"""State in half precision whose rounding is kept aside and added the next time loses nothing."""

import weakref
from inspect import unwrap

import pytest
import torch
from code_lines import line_of
from torch import nn

import ampcheck
from ampcheck.observe.script.state.half_state import Following
from ampcheck.observe.statistics.units import unit_of
from ampcheck.values.findings import Severity

STEPS = 220


class Average:
    """Moves to what it is given, in bfloat16; what rounding cuts off is kept, or is not."""

    def __init__(self, tensors, rate, *, keeps):
        self.rate, self.keeps = rate, keeps
        self.value = [tensor.detach().bfloat16() for tensor in tensors]
        self.rest = [(t.detach() - v.float()).bfloat16() for t, v in zip(tensors, self.value, strict=True)]

    @torch.no_grad()
    def update(self, tensors):
        for value, rest, new in zip(self.value, self.rest, tensors, strict=True):
            exact = value.float() + (rest.float() if self.keeps else 0.0)
            exact += self.rate * (new - exact)
            value.copy_(exact)
            rest.copy_(exact - value.float())


def distilled(*, keeps):
    """Train a student beside a teacher in bfloat16; return how far off the teacher is at the end, and the report."""
    torch.manual_seed(0)
    student, teacher = nn.Linear(8, 32), nn.Linear(8, 32).bfloat16().requires_grad_(False)
    average = Average(list(student.parameters()), 0.004, keeps=keeps)
    exact = [parameter.detach().double() for parameter in student.parameters()]
    optimizer = torch.optim.SGD(student.parameters(), 0.5)
    with ampcheck.watch(student, optimizer) as watching:
        for _ in range(STEPS):
            with torch.no_grad():
                for held, value in zip(teacher.parameters(), average.value, strict=True):
                    held.copy_(value)
            optimizer.zero_grad()
            x = torch.randn(64, 8)
            with torch.autocast("cpu", torch.bfloat16):
                out = student(x).float()
            loss = (out - teacher(x.bfloat16()).float() - 1).square().mean()
            loss.backward()
            optimizer.step()
            average.update([parameter.detach() for parameter in student.parameters()])
            for one, parameter in zip(exact, student.parameters(), strict=True):
                one.add_(0.004 * (parameter.detach().double() - one))
    off = [float((a.double() - b).norm() / b.norm()) for a, b in zip(average.value, exact, strict=True)]
    return max(off), watching.report()


@pytest.mark.parametrize("keeps", [True, False])
def test_a_teacher_is_lost_only_where_nothing_is_kept_aside(keeps):
    off, report = distilled(keeps=keeps)
    assert (off < torch.finfo(torch.bfloat16).eps / 2) is keeps, off
    errors = {one.code for one in report.findings if one.severity is Severity.ERROR}
    assert errors == (set() if keeps else {"AMP504"})


@pytest.mark.parametrize("known", [True, False])
def test_what_an_optimizer_keeps_aside_of_a_weight_is_no_state_that_loses_changes(known):
    """It gets less each step than it holds itself: that is far less than the weight can show."""
    torch.manual_seed(0)
    weight = torch.randn(512).bfloat16()
    rest = ((torch.rand(512) - 0.5) * unit_of(weight)).bfloat16()
    step, exact = 0.2 * unit_of(rest) * rest.sign(), weight.double() + rest.double()
    following = Following([("rest", rest)])
    (state,) = following.states
    state.parameter = weakref.ref(weight) if known else None
    for _ in range(16):
        total = rest.float() + step
        weight_before = weight.clone()
        weight.copy_(weight.float() + total)
        rest.copy_(total - (weight.float() - weight_before.float()))
        exact += step
        following.step_ends()
    following.end()
    assert float(((weight.double() - exact).abs() / unit_of(weight)).max()) < 1
    assert bool(state.losses) is not known


class Signs(torch.optim.Optimizer):
    """Moves each weight by the learning rate in the direction of an average gradient, as Lion does."""

    def __init__(self, parameters, lr, round_to=None):
        super().__init__(list(parameters), {"lr": lr})
        self.round_to = round_to

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                average = self.state[parameter].setdefault("average", parameter.grad.float())
                average.lerp_(parameter.grad.float(), 0.1)
                new = parameter.float() - group["lr"] * average.sign()
                parameter.copy_(self.round_to(new) if self.round_to else new)


def at_random(numbers):
    """Round to bfloat16, up or down as often as that is right on average."""
    bits = numbers.view(torch.int32) + torch.randint(0, 2**16, numbers.shape, dtype=torch.int32)
    return (bits & -(2**16)).view(torch.float32)


def steered(lr, round_to, goal):
    """Train half weights; return by how much they moved, and the report."""
    torch.manual_seed(0)
    model = nn.Linear(16, 32).bfloat16()
    start = model.weight.detach().float()
    optimizer = Signs(model.parameters(), lr, round_to)
    with ampcheck.watch(model, optimizer) as watching:
        for _ in range(100):
            optimizer.zero_grad()
            x = torch.randn(64, 16).bfloat16()
            (model(x).float() - goal * x.float().sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
    return float((model.weight.detach().float() - start).abs().mean()), watching.report()


@pytest.mark.parametrize(("round_to", "lost"), [(None, True), (at_random, False)])
def test_weights_that_an_optimizer_of_ones_own_steps_are_followed_over_many_steps(round_to, lost):
    way, report = steered(1e-4, round_to, 10.0)
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert (way < 0.5 * 100 * 1e-4) is lost  # in FP32 each step has the same direction
    assert [one.code for one in errors] == ["AMP504"] * lost
    if lost:
        assert errors[0].origin.line == line_of(unwrap(Signs.step), "parameter.copy_")


def test_weights_whose_steps_are_kept_count_as_compared():
    way, report = steered(0.05, None, 1.0)
    assert 0.8 < way < 1.2
    assert not [one for one in report.findings if one.severity is Severity.ERROR]
    assert not any("not compared" in gap for gap in report.verdict.coverage.gaps)


class Compensated:
    """SGD with momentum on bfloat16 weights; what rounding cuts off of a change is added to the next, or is not."""

    def __init__(self, params, rate, *, keeps):
        self.params, self.rate, self.keeps = list(params), rate, keeps
        self.velocity = [torch.zeros_like(p) for p in self.params]
        self.carry = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        for p, v, c in zip(self.params, self.velocity, self.carry, strict=True):
            v.mul_(0.9).add_(p.grad)
            change = c * self.keeps - self.rate * v
            before = p.clone()
            p.add_(change)
            c.copy_(change - (p - before))


@pytest.mark.parametrize("keeps", [True, False])
def test_weights_with_a_remainder_are_as_good_as_fp32_also_single_numbers(keeps):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).bfloat16()
    exact = [p.detach().double() for p in model.parameters()]
    speed = [torch.zeros_like(e) for e in exact]
    optimizer = Compensated(model.parameters(), 2e-4, keeps=keeps)
    with ampcheck.watch(model) as watching:
        for _ in range(STEPS):
            x = torch.randn(64, 8)
            loss = (model(x.bfloat16()).float() - x.sum(1, keepdim=True) - 1).square().mean()
            for p in model.parameters():
                p.grad = None
            loss.backward()
            for e, v, p in zip(exact, speed, model.parameters(), strict=True):
                e.sub_(2e-4 * v.mul_(0.9).add_(p.grad.double()))
            optimizer.step()
    weights = [p.detach().double() for p in model.parameters()]
    off = [float((p - e).norm() / e.norm()) for p, e in zip(weights, exact, strict=True)]
    report = watching.report()
    errors = {one.code for one in report.findings if one.severity is Severity.ERROR}
    assert errors == (set() if keeps else {"AMP504"}), (off, [(f.message, f.origin) for f in report.findings])
    assert (max(off) < 0.02) is keeps, off
