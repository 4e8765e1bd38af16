"""A pass takes no step, and measures something: what it adds up in half precision is judged as an average is."""

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.observe.script.state.passes import Passes
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


class Heard:
    """Writes down what it is told of a pass."""

    def __init__(self):
        self.told = []

    def pass_begins(self):
        self.told.append("begins")

    def pass_goes_on(self, nth):
        self.told.append(nth)


def told(script, steps=6):
    """What is said of a script of b(ackwards) and s(teps), after some steps of as many backwards as its first one."""
    passes, heard = Passes(), Heard()
    usual = script[: script.index("s") + 1] * steps
    for at, event in enumerate(usual + script):
        if at == len(usual):
            heard.told.clear()
        if event == "s":
            passes.step_ends()
            continue
        passes.backwards += 1
        if passes.backwards >= passes.begins:
            passes.goes_on(passes.backwards, heard)
    return heard.told


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("bs" * 9, []),
        ("bs" + "b" * 4 + "s", []),  # a few more than usual
        ("bs" + "b" * 8 + "s", ["begins", 1, 2, 3]),
        (("b" * 16 + "s") * 3, []),  # gradients add up in each step
        ("b" * 16 + "s" + "b" * 22 + "s", ["begins", 1, 2]),
    ],
)
def test_a_pass_has_more_backwards_than_steps_have(script, expected):
    assert told(script) == expected


def measures(dtype, weight, device="cuda", *, passes=1):
    """Train, measure how much each weight matters, train on with a penalty; return the sums and what FP64 has."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    sums = [torch.zeros_like(p, dtype=dtype) for p in model.parameters()]
    exact = [torch.zeros_like(p, dtype=torch.float64) for p in model.parameters()]

    def loss():
        x = torch.randn(32, 8)
        with torch.autocast(device, torch.bfloat16):
            return F.mse_loss(model(x).float(), x.sum(1, keepdim=True))

    for _ in range(passes):
        for _ in range(10):
            optimizer.zero_grad()
            penalty = sum(
                (one.float() * p.square()).sum() for one, p in zip(sums, model.parameters(), strict=True)
            )
            (loss() + penalty).backward()
            optimizer.step()
        for _ in range(30):
            model.zero_grad()
            loss().backward()
            for one, wide, p in zip(sums, exact, model.parameters(), strict=True):
                one.add_((weight * p.grad).square() / 30)
                wide.add_((weight * p.grad.double()).square() / 30)
    for _ in range(4):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return sums, exact


def kept(sums, exact):
    """Which part of the exact sums half precision holds."""
    return float(sum(one.double().sum() for one in sums) / sum(one.sum() for one in exact))


@pytest.mark.parametrize(
    ("dtype", "weight", "lost"),
    [
        (torch.float16, 1e-4, True),  # squares below the smallest number
        (torch.float16, 1.0, False),
        (torch.bfloat16, 1e-4, False),  # the range of FP32, and thirty numbers of about the same size
        (torch.float32, 1e-4, False),
    ],
)
def test_sums_of_squares_are_judged_as_they_come_out(dtype, weight, lost):
    found = []
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        found.extend(measures(dtype, weight))
    assert not session.watcher.broken, session.watcher.not_seen
    assert (kept(*found) < 0.25) is lost
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == (["AMP504"] if lost else [])
    if lost:
        assert errors[0].origin.line == line_of(measures, "one.add_(")


def test_what_is_followed_in_a_pass_comes_out_as_without_us():
    plain, _ = measures(torch.float16, 1e-2, "cpu", passes=2)
    session = Session(Schedule())
    with session.watching():
        watched, _ = measures(torch.float16, 1e-2, "cpu", passes=2)
    assert all(torch.equal(one, other) for one, other in zip(watched, plain, strict=True))
    assert session.watcher.averages.following is None


def means(dtype):
    """Train, then follow the mean of some outputs, which drift; return how far it is from the exact one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 24))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.mse_loss(model(torch.randn(32, 8)).float(), torch.ones(32, 24))
        loss.backward()
        optimizer.step()
    model.requires_grad_(requires_grad=False)
    mean, exact = torch.zeros(24, dtype=dtype), torch.zeros(24, dtype=torch.float64)
    for number in range(1, 1501):
        with torch.autocast("cuda", torch.bfloat16):
            out = model(torch.randn(8))
        out = out.float() + 4 * number / 1500
        mean.add_((out - mean) / number)
        exact.add_((out.double() - exact) / number)
    return float(((mean.double() - exact) / exact).abs().max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_mean_of_outputs_after_training_is_judged(dtype):
    errors, session = [], Session(Schedule(), as_cuda=True)
    with session.watching():
        errors.append(means(dtype))
    assert not session.watcher.broken, session.watcher.not_seen
    lost = dtype is torch.bfloat16
    assert (errors[0] > 0.05) is lost
    found = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [(one.code, one.origin.line) for one in found] == (
        [("AMP504", line_of(means, "mean.add_("))] if lost else []
    )


@pytest.mark.parametrize("backwards", [5, 8, 30])
@pytest.mark.parametrize("without_step", [True, False])
def test_what_is_lost_of_too_few_changes_to_tell_is_not_called_safe(backwards, without_step):
    """Nothing of it arrives in bfloat16; what is written no more since it is followed has not been judged by that."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    sums = [torch.ones_like(one, dtype=torch.bfloat16) for one in model.parameters()]
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        for at in range(10 + backwards + 4):
            measures = 10 <= at < 10 + backwards
            x = torch.randn(32, 8)
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.mse_loss(model(x).float(), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            if not (measures and without_step):
                optimizer.step()
            for one in sums if measures else ():
                one.add_(1e-4)
    assert all(bool((one == 1.0).all()) for one in sums)
    assert session.report("script.py").verdict.word is Health.PARTLY_AUDITED


def learn(model, optimizer):
    """Take a step of training, and return what it was given."""
    x = torch.randn(32, 8)
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.mse_loss(model(x).float(), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return x


@pytest.mark.parametrize("evaluates", [True, False])
def test_what_a_pass_comes_between_is_not_forgotten(evaluates):
    """Some steps write the sums, before a pass that leaves them alone; nobody has judged what was lost of that."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    sums = [torch.ones_like(one, dtype=torch.bfloat16) for one in model.parameters()]
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        for step in range(60):
            x = learn(model, optimizer)
            for one in sums if step in {44, 46, 48} else ():
                one.add_(1e-4)
            for _ in range(12 if evaluates and step == 50 else 0):
                with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                    model(x)
    assert all(bool((one == 1.0).all()) for one in sums)
    assert session.report("script.py").verdict.word is Health.PARTLY_AUDITED


def moments(dtype):
    """Train, then add up products of features within a few long regions of autocast; return that and what FP32 has."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(10):
        learn(model, optimizer)
    gram, exact = torch.zeros(32, 32, dtype=dtype), torch.zeros(32, 32)
    for _ in range(8):
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            for _ in range(120):
                features = model[1](model[0](torch.randn(16, 8))).float()
                gram += features.T @ features
                exact += features.T @ features
    return gram, exact


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_sum_that_keeps_too_little_of_what_is_added_in_long_regions_is_an_error(dtype):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        gram, exact = moments(dtype)
    lost = dtype is torch.bfloat16
    assert (float(gram.float().sum() / exact.sum()) < 0.75) is lost
    found = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [(one.code, one.origin.line) for one in found] == (
        [("AMP504", line_of(moments, "gram += "))] if lost else []
    )
