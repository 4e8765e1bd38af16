"""Weights in half precision that take Adam's first steps, which are as large as its learning rate, and not the rest."""

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule


def train(lr, *, wide, steps=40):
    """Train a table of 0.3-like numbers; return how far it moves, and the report's errors."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        table = nn.Embedding(64, 8, dtype=torch.float32 if wide else torch.bfloat16)
        nn.init.normal_(table.weight, std=0.3)
        head = nn.Linear(8, 1)
        first = table.weight.detach().float().clone()
        optimizer = torch.optim.Adam([*table.parameters(), *head.parameters()], lr)
        for _ in range(steps):
            ids = torch.randint(64, (256,))
            noisy = (ids % 2).float() * 2 - 1 + 2 * torch.randn(256)
            with torch.autocast("cuda", torch.bfloat16):
                loss = (head(table(ids)).float()[:, 0] - noisy).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    moved = float((table.weight.detach().float() - first).norm())
    report = session.report("script.py")
    return moved, [found for found in report.findings if found.severity == "error"]


@pytest.mark.parametrize("wide", [True, False])
def test_later_steps_of_adam_are_lost_though_its_first_are_not(wide):
    moved, errors = train(6e-4, wide=wide)
    full, _ = train(6e-4, wide=True)
    assert (moved < 0.7 * full) is not wide
    assert [(one.code, one.numbers["lost_fraction"] > 0.5) for one in errors] == (
        [] if wide else [("AMP504", True)]
    )


def test_larger_steps_that_are_kept_are_no_error():
    assert train(2e-2, wide=False)[1] == []
