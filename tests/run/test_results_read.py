"""Numbers that a script reads of what it computes without gradients: those nothing like FP32's are never safe."""

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def watched(computes):
    """Train a little, then compute something without gradients; return that, and the report."""
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16))
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cuda", 2.0**10)
        for _ in range(8):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(16, 8)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        with torch.no_grad():
            with torch.autocast("cuda", torch.float16):
                model(torch.randn(16, 8))
            found = computes()
    assert not session.watcher.broken, session.watcher.not_seen
    return found, session.report("script.py")


def weighed(dtype):
    """Return a mean weighed by how far numbers spread; a weight that is no number counts nothing."""
    numbers = (400.0 * torch.randn(64, 8)).to(dtype)
    spread = numbers.square().mean(0)
    weights = (spread / spread.sum()).nan_to_num(1.0)
    return (weights.float() * torch.linspace(1.0, 2.0, 8)).sum().item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_result_behind_an_overflow_is_an_error_though_it_is_finite(dtype):
    mean, report = watched(lambda: weighed(dtype))
    assert 1.0 < mean < 2.0 if dtype is torch.float32 else mean > 3.0
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == (["AMP510"] if dtype is torch.float16 else [])
    for one in errors:
        assert one.origin.line == line_of(weighed, "spread = ")
        assert "nothing like FP32's" in one.message


def differs(dtype):
    """Return the mean square of differences of large numbers: a few hundredths."""
    far = 4096.0 + torch.rand(64, 8) * 0.2
    return float((far.to(dtype) - (far + 0.1 * torch.rand(64, 8)).to(dtype)).float().square().mean())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_result_that_rounding_makes_is_never_safe(dtype):
    found, report = watched(lambda: differs(dtype))
    assert (abs(found - 0.0033) < 0.001) is (dtype is torch.float32)
    assert (report.verdict.word is Health.SAFE) is (dtype is torch.float32)
    assert not [one for one in report.findings if one.severity is Severity.ERROR]
    if dtype is torch.float16:
        assert "nothing like FP32's" in report.verdict.sentence


def norm_of(grads, dtype):
    """Return the norm of gradients as a sum of squares."""
    total = 0.0
    for grad in grads:
        total = total + (grad.to(dtype) * grad.to(dtype)).sum()
    return float(total.sqrt())


def clipped(dtype, steps=12):
    """Train FP32 copies of half weights by gradients that are clipped by their norm; return how far a weight came."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4)).half()
    masters = [one.detach().float().requires_grad_() for one in model.parameters()]
    optimizer, scale, first = torch.optim.SGD(masters, 0.1), 2.0**10, masters[0].detach().clone()
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        loss = (model(torch.randn(16, 8).half()).float() - 3.0).square().mean()
        (loss * scale).backward()
        grads = [one.grad for one in model.parameters()]
        assert all(bool(one.isfinite().all()) for one in grads)
        share = min(1.0, 1.0 / (norm_of(grads, dtype) / scale + 1e-6))
        for master, grad in zip(masters, grads, strict=True):
            master.grad = grad.float() * (share / scale)
        optimizer.step()
        with torch.no_grad():
            for one, master in zip(model.parameters(), masters, strict=True):
                one.copy_(master)
    return float((masters[0].detach() - first).norm())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_norm_of_gradients_that_overflows_before_they_are_used_is_an_error_where_it_does(dtype):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        came = clipped(dtype)
    assert (came == 0.0) is (dtype is torch.float16)
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == (["AMP421"] if dtype is torch.float16 else [])
    for one in errors:
        assert one.origin.line == line_of(norm_of, "total = total +")
