"""Functions of a script's own whose backward computes with the loss scale: FP32 is to do the same with it."""

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


class Pull(torch.autograd.Function):
    """Gives a gradient a length, which is computed in half precision or not."""

    @staticmethod
    def forward(ctx, hidden, length, dtype):
        ctx.length, ctx.dtype = length, dtype
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx, grad):
        wide = grad.to(ctx.dtype)
        norm = (wide * wide).sum().sqrt()
        return (wide * (ctx.length / (norm + 1e-6))).to(grad.dtype), None, None


def pulled(dtype, steps=12):
    """Train two heads that pull at one encoder with the same strength; return whether the encoder has moved."""
    torch.manual_seed(0)
    encoder, heads = (
        nn.Sequential(nn.Linear(8, 16), nn.Tanh()),
        nn.ModuleList(nn.Linear(16, 2) for _ in range(2)),
    )
    before = encoder[0].weight.detach().clone()
    optimizer = torch.optim.SGD([*encoder.parameters(), *heads.parameters()], 0.01)
    scaler = torch.amp.GradScaler("cuda", 2.0**13)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            hidden, length = encoder(torch.randn(64, 8)), 0.1 * scaler.get_scale()
            out = [head(Pull.apply(hidden, length, dtype)) for head in heads]
            loss = sum((one.float() - 3.0).square().mean() for one in out)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return not torch.equal(encoder[0].weight.detach(), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_backward_that_computes_with_a_part_of_the_scale_is_judged_by_what_it_loses_alone(dtype):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        moved = pulled(dtype)
    report = session.report("script.py")
    lost = dtype is torch.float16  # squares overflow, so that the length is divided by infinity
    assert moved is not lost
    assert bool([one for one in report.findings if one.severity is Severity.ERROR]) is lost
    assert (report.verdict.word is Health.SAFE) is not lost
