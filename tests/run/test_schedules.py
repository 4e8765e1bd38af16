"""Schedulers that lower a learning rate by losses that half precision has rounded."""

import pytest
import torch
from torch import nn

from ampcheck.observe.script.schedules import ROUNDED_METRIC
from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def train(dtype, patience):
    """Train on one batch whose loss falls slowly; return the report and how often the rate fell."""
    torch.manual_seed(0)
    x, session, falls = torch.randn(32, 8), Session(Schedule(), as_cuda=True), 0
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), 4e-4)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=patience)
        for _ in range(40):
            with torch.autocast("cuda", torch.bfloat16):
                out = model(x)
            loss = (out.float() - x[:, :1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            before = optimizer.param_groups[0]["lr"]
            plateau.step(loss.detach().to(dtype).item())
            falls += optimizer.param_groups[0]["lr"] < before
    return session.report("script.py"), falls


@pytest.mark.parametrize(
    ("dtype", "patience", "falls", "known"),
    [(torch.bfloat16, 1, True, False), (torch.float32, 1, False, True), (torch.bfloat16, 50, False, True)],
)
def test_a_rate_that_falls_by_rounded_losses_is_not_called_safe(dtype, patience, falls, known):
    report, fell = train(dtype, patience)
    assert bool(fell) is falls  # only rounding makes a plateau of a loss that falls
    assert (ROUNDED_METRIC not in report.verdict.sentence) is known
    assert (report.verdict.word is not Health.PARTLY_AUDITED) is known
