"""A precision that was asked for, where another one ran: the verdict's own sentence says so, and it is not SAFE."""

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.run.wishes import wishes
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

SOURCE = "trainer = Trainer({})\ntrainer.fit(model)\n"


def trained(ask, dtype, *, enabled=True, scaled=False):
    """Train with one precision under a script that asks for one; return the report."""
    session = Session(Schedule(), as_cuda=True, asked=wishes(SOURCE.format(ask), "train.py"))
    with session.watching():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cuda", enabled=scaled)
        for _ in range(6):
            with torch.autocast("cuda", dtype, enabled=enabled):
                loss = model(torch.randn(16, 8)).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return session.report("train.py")


ANOTHER = {
    'precision="16-mixed"': (torch.bfloat16, True, "bf16"),
    'precision="bf16-mixed"': (torch.float16, True, "fp16"),
    "amp=True": (torch.float16, False, "fp32"),
    "fp16=True": (torch.float16, False, "fp32"),
}


@pytest.mark.parametrize("ask", ANOTHER)
def test_another_precision_than_was_asked_for_is_said_and_is_not_safe(ask):
    dtype, enabled, ran = ANOTHER[ask]
    report = trained(ask, dtype, enabled=enabled, scaled=ran == "fp16")
    assert report.precision == ran
    assert report.verdict.word in {Health.PARTLY_AUDITED, Health.UNKNOWN}
    assert report.verdict.coverage.asked
    for word in (ask.partition("=")[0], "train.py:1"):
        assert word in report.verdict.sentence
    assert "is safe here" not in report.verdict.sentence


@pytest.mark.parametrize("ask", ['precision="16-mixed"', "amp=True", "fp16=True"])
def test_what_was_asked_for_and_ran_is_safe(ask):
    report = trained(ask, torch.float16, scaled=True)
    assert report.verdict.word is Health.SAFE
    assert not report.verdict.coverage.asked


@pytest.mark.parametrize("ends", ["skips", "dies"])
def test_nothing_works_here_where_no_step_was_completed(ends):
    """Every step is skipped, or the script ends within the first one, and what was seen has a warning at most."""
    session = Session(Schedule(first=8), as_cuda=True)
    with session.watching():
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cuda")
        for _ in range(3):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(16, 8)).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if ends == "dies":
                break
            model.weight.grad[0, 0] = torch.inf  # whatever made it so
            scaler.step(optimizer)
            scaler.update()
    report = session.report("train.py")
    assert report.verdict.coverage.completed == 0
    assert report.verdict.word in {Health.UNKNOWN, Health.PARTLY_AUDITED, Health.UNSAFE}
    for said in ("works here", "is safe here", "shows nothing wrong"):
        assert said not in report.verdict.sentence
