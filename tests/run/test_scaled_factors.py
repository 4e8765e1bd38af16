"""A scale that a script takes from scaler.scale by itself, and multiplies losses by, here and in threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def train(pool=None, *, multiplies=True):
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)

    def shard(factor):
        x = torch.randn(16, 8)
        with torch.autocast("cuda", torch.float16):
            loss = (model(x).float() - x.sum(1, keepdim=True)).square().mean()
        (loss * factor / 2).backward()

    for _ in range(12):
        optimizer.zero_grad()
        factor = scaler.scale(torch.ones(()))
        run = map if pool is None else pool.map
        list(run(shard, [factor if multiplies else torch.ones(())] * 2))
        scaler.step(optimizer)
        scaler.update()
    return model


def watched(*args, **how):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        train(*args, **how)
    report = session.report("script.py")
    return {one.code for one in report.findings if one.severity is Severity.ERROR}


@pytest.mark.parametrize("multiplies", [True, False])
def test_a_loss_that_is_multiplied_by_a_scaled_one_is_scaled(multiplies):
    assert ("AMP408" in watched(multiplies=multiplies)) is not multiplies


def test_a_loss_that_is_multiplied_by_a_scaled_one_in_a_thread_is_scaled():
    with ThreadPoolExecutor(1) as pool:
        assert "AMP408" not in watched(pool)
