"""Gradients of a scaler's loss that a script divides by itself: a direct step of them is right."""

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def train(divide, *, beside=False):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model, other = nn.Linear(8, 4), nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        stepped = torch.optim.SGD(other.parameters(), 1e-6)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        for _ in range(8):
            optimizer.zero_grad()
            stepped.zero_grad()
            x = torch.randn(16, 8)
            with torch.autocast("cuda", torch.float16):
                out = model(x) + other(x) if beside else model(x)
                loss = out.float().square().mean()
            scaler.scale(loss).backward()
            divide(model, scaler.get_scale())
            if beside:
                scaler.step(stepped)
            optimizer.step()
            if beside:
                scaler.update()
    report = session.report("script.py")
    return {finding.code for finding in report.findings if finding.severity is Severity.ERROR}


def in_place(model, scale):
    for parameter in model.parameters():
        parameter.grad.mul_(1.0 / scale)


def averaged_in_half(model, scale):
    for parameter in model.parameters():
        parameter.grad = (parameter.grad / scale).half().float() / 4


def undivided(model, scale):
    pass


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("divide", [in_place, averaged_in_half])
def test_a_direct_step_of_divided_gradients_is_no_error(divide, beside):
    assert "AMP403" not in train(divide, beside=beside)


@pytest.mark.parametrize("beside", [True, False])
def test_one_of_gradients_that_nobody_divided_is(beside):
    assert "AMP403" in train(undivided, beside=beside)
