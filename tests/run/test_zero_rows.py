"""Rows of a gradient that are zero in half precision only: the other rows hide them, and the report is not SAFE."""

import pytest
import torch
from torch import nn

from ampcheck.observe.script.gradient_rows import ZEROED
from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def watched(train, **how):
    """Return what a training returns, and the report on it."""
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        done = train(**how)
    return done, session.report("script.py")


def train(*, wide, steps=12):
    """Train an affine coupling whose scale is a sigmoid near 1; return the last gradient of its last layer."""
    torch.manual_seed(0)
    net, out = nn.Sequential(nn.Linear(2, 32), nn.Tanh()), nn.Linear(32, 4)
    optimizer = torch.optim.Adam([*net.parameters(), *out.parameters()], 1e-3)
    for _ in range(steps):
        x = torch.randn(64, 4)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            shift, raw = out(net(x[:, :2])).chunk(2, 1)
            scale = torch.sigmoid((raw.float() if wide else raw) + 7.0)
            y = (x[:, 2:] - shift) / scale
            loss = (y.float().square() / 2 + scale.float().log()).sum(1).mean()
        loss.backward()
        optimizer.step()
    return out.weight.grad


@pytest.mark.parametrize("wide", [True, False])
def test_rows_that_get_no_gradient_in_half_precision_are_said(wide):
    grad, report = watched(train, wide=wide)
    assert bool((grad[2:] == 0).all()) is not wide
    assert bool(grad[:2].norm() > 100 * grad[2:].norm())  # so that the whole hides them
    assert any(ZEROED in gap for gap in report.verdict.coverage.gaps) is not wide
    assert (report.verdict.word is Health.SAFE) is wide


def control(*, wide, steps=60):
    """Train two commands of which the second begins at tanh(4.6), which bfloat16 holds as 1; return its last row."""
    torch.manual_seed(0)
    command = nn.Linear(4, 2)
    with torch.no_grad():
        command.weight.mul_(0.1)
        command.bias.copy_(torch.tensor([0.0, 4.6]))
    optimizer = torch.optim.Adam(command.parameters(), 0.02)
    x = torch.randn(64, 4)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            raw = command(x)
            wanted = torch.tanh(raw.float() if wide else raw).float()
        (wanted - 0.5).square().mean().backward()
        optimizer.step()
    return command


@pytest.mark.parametrize("wide", [True, False])
def test_rows_that_are_never_learned_are_an_error_where_they_come_to_count(wide):
    command, report = watched(control, wide=wide)
    assert bool(command.bias[1] == torch.tensor(4.6)) is not wide  # it has never moved
    errors = [found for found in report.findings if found.severity == "error"]
    assert bool(errors) is not wide
    assert all(found.code in {"AMP201", "AMP501"} and found.sites[0].module == "command" for found in errors)
