"""What a step computes in half precision before its first call, and of which nothing is left but integers."""

import inspect

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

EDGES = torch.linspace(1000, 1010, 65)


def classes(x, dtype):
    """Return in which of 64 bins numbers lie: in float16 there are two in each part of them."""
    return torch.bucketize(x.to(dtype), EDGES.to(dtype))


def within_the_region(x, dtype):
    with torch.autocast("cuda", torch.float16):
        k = classes(x, dtype)
        yield k


def before_the_region(x, dtype):
    k = classes(x, dtype)
    with torch.autocast("cuda", torch.float16):
        yield k


def train(given, dtype, first_scale, steps=40):
    """Fit a wave by a table; return the loss."""
    torch.manual_seed(0)
    table, head = nn.Embedding(66, 8), nn.Linear(8, 1)
    optimizer = torch.optim.Adam([*table.parameters(), *head.parameters()], 5e-2)
    scaler = torch.amp.GradScaler("cuda", init_scale=first_scale)
    for _ in range(steps):
        x = 1000 + 10 * torch.rand(256)
        for k in given(x, dtype):
            loss = (head(table(k))[:, 0].float() - torch.sin(6 * x)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss.item()


@pytest.mark.parametrize("first_scale", [2.0**8, 2.0**18])  # the larger one is skipped at first
@pytest.mark.parametrize("given", [within_the_region, before_the_region])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_bins_that_half_precision_mixes_up_are_an_error_where_they_are_looked_up(given, dtype, first_scale):
    session = Session(Schedule(), as_cuda=True)
    session.watcher.tape.workers.preparation.begin(
        session.watcher
    )  # as `ampcheck run` does for such a source
    with session.watching():
        loss = train(given, dtype, first_scale)
    low = dtype is torch.float16
    assert not session.watcher.broken, session.watcher.not_seen
    assert (loss > 0.15) is low
    report = session.report("script.py")
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == (["AMP510"] if low else [])
    if low:
        code, first = inspect.getsourcelines(classes)
        assert errors[0].origin.line == first + next(n for n, text in enumerate(code) if "bucketize" in text)
    else:
        assert report.verdict.word is Health.SAFE
    assert len(session.watcher.tape.recorded) < 8  # it goes on as it would


@pytest.mark.parametrize("given", [within_the_region, before_the_region])
def test_what_is_recorded_so_is_trained_as_it_is_without_us(given):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        watched = train(given, torch.float16, 2.0**18)
    with Session(Schedule(steps=(10**6,)), as_cuda=True).watching():  # of which no step is recorded
        assert train(given, torch.float16, 2.0**18) == watched
