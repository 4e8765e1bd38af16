"""What is added to gradients that hold the loss scale, and norms in half precision that clip them to nothing."""

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def train(change, *, unscale, steps=6, lr=0.05, size=1.0):
    """Train, and `change` the gradients by hand; return the report and how far the weights went."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        start = [one.detach().clone() for one in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        for _ in range(steps):
            x = torch.randn(64, 8)
            with torch.autocast("cuda", torch.float16):
                loss = (model(x).float() - size * x[:, :1]).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
            with torch.no_grad():
                change(list(model.parameters()), start)
            scaler.step(optimizer)
            scaler.update()
    moved = sum(
        float((one.detach() - was).norm()) for one, was in zip(model.parameters(), start, strict=True)
    )
    report = session.report("script.py")
    return [found for found in report.findings if found.severity is Severity.ERROR], moved


def anchor(parameters, start):
    """Pull weights back to where they were."""
    for one, was in zip(parameters, start, strict=True):
        one.grad.add_(one - was, alpha=2.0)


def scaled_anchor(parameters, start):
    """Do the same to gradients that hold the loss scale."""
    for one, was in zip(parameters, start, strict=True):
        one.grad.add_((one - was) * 2.0**10, alpha=2.0)


@pytest.mark.parametrize("unscale", [True, False])
def test_what_is_added_without_the_scale_that_gradients_hold_is_an_error(unscale):
    errors, moved = train(anchor, unscale=unscale)
    _, free = train(lambda *_: None, unscale=True)
    assert (abs(moved / free - 1) < 0.01) is not unscale  # the anchor does nothing
    assert [(one.code, "loss scale" in one.message) for one in errors] == (
        [] if unscale else [("AMP421", True)]
    )


def test_what_is_added_with_the_scale_is_none():
    errors, moved = train(scaled_anchor, unscale=False)
    _, right = train(anchor, unscale=True)
    assert abs(moved / right - 1) < 0.01
    assert errors == []


def clip(dtype):
    """Return a clip by a norm that is computed in a precision."""

    def change(parameters, _start):
        flat = torch.cat([one.grad.flatten() for one in parameters]).to(dtype)
        norm = flat.square().sum().sqrt().item()
        for one in parameters:
            one.grad.mul_(min(1.0, 1.0 / (norm + 1e-6)))

    return change


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_norm_that_overflows_in_half_precision_and_clips_all_to_zero_is_an_error(dtype):
    errors, moved = train(clip(dtype), unscale=True, size=1000.0)
    half = dtype is torch.float16
    assert (moved == 0.0) is half
    assert [(one.code, one.numbers["error"]) for one in errors] == ([("AMP421", 1.0)] if half else [])


def test_a_norm_that_overflows_and_is_only_looked_at_is_none():
    def look(parameters, _start):
        torch.cat([one.grad.flatten() for one in parameters]).half().square().sum().sqrt().item()

    errors, _ = train(look, unscale=True, size=1000.0)
    assert errors == []
