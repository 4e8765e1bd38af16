"""Gradients that a script reads and goes on computing with, as those of embeddings that are kept for a second pass."""

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def cached(scale, *, enabled=True):
    """Train by gradients of embeddings; return how far the weights have moved. The first loss may be scaled."""
    torch.manual_seed(0)
    tower = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to("cuda")
    start = tower[0].weight.detach().clone()
    optimizer = torch.optim.Adam(tower.parameters(), 1e-2, eps=1e-14)
    scaler = torch.amp.GradScaler("cuda", enabled=enabled)
    for _ in range(8):
        x = torch.randn(64, 8, device="cuda")
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            codes = tower(x)
        codes.requires_grad_()
        loss = 1e-7 * (codes.float() - x[:, :4]).square().mean()
        (loss * scale).backward()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            again = tower(x)
        surrogate = (again.float() * (codes.grad.float() / scale)).sum()
        scaler.scale(surrogate).backward()
        scaler.step(optimizer)
        scaler.update()
    return float((tower[0].weight.detach() - start).abs().max())


@pytest.mark.parametrize(("scale", "lost"), [(1.0, True), (2.0**15, False)])
def test_gradients_of_an_unscaled_loss_that_are_read_as_zeros_are_an_error_at_its_backward(scale, lost):
    session, moved = Session(Schedule(), as_cuda=True), []
    with session.watching():
        moved.append(cached(scale))
    errors = [one for one in session.report("loop").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == ["AMP408"] * lost, [(one.code, one.message) for one in errors]
    assert (moved[0] == 0.0) is lost, moved
    for error in errors:
        assert error.origin.line == line_of(cached, "(loss * scale).backward()")
        assert f":{line_of(cached, 'surrogate = ')} reads are zero" in error.message
        assert "2.0**15" in error.fix[0]
        assert "/ 2.0**15" in error.fix[1]


def test_where_no_loss_is_scaled_the_backward_that_made_the_zeros_is_named_first():
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        assert cached(1.0, enabled=False) == 0.0
    first = next(one for one in session.report("loop").findings if one.severity is Severity.ERROR)
    assert (first.code, first.origin.line) == ("AMP408", line_of(cached, "(loss * scale).backward()"))
