"""Schedulers that lower a learning rate by losses that half precision has rounded."""

import pytest
import torch
from torch import nn

from ampcheck.observe.script.schedules import ROUNDED_METRIC, _is_half
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


@pytest.mark.parametrize(
    "number", [0.0, -1.5, 0.1, 65504.0, 65536.0, 2.0**-24, 2.0**-30, 1e39, 1 / 3, float("nan")]
)
def test_what_half_precision_holds_is_what_a_cast_leaves_as_it_is(number):
    casts = (
        float(torch.tensor(number, dtype=torch.float64).to(dtype))
        for dtype in (torch.float16, torch.bfloat16)
    )
    assert _is_half(number) is any(cast == number for cast in casts)


class Equal(torch.optim.lr_scheduler.ReduceLROnPlateau):
    """Has no hash, as what says when it is equal to another."""

    __hash__ = None

    def __eq__(self, other):
        return self is other


def test_a_scheduler_that_cannot_be_remembered_goes_on():
    weight = nn.Parameter(torch.ones(2))
    scheduler, session = Equal(torch.optim.SGD([weight], 0.1), patience=0), Session(Schedule())
    with session.watching(), torch.device("meta"):
        for _ in range(12):
            scheduler.step(1.0)
    assert scheduler.num_bad_epochs == 0
    assert scheduler._last_lr[0] < 0.1
