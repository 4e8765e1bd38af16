"""Numbers that a script looks at before it decides whether to train on a batch."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from witness import Names

from ampcheck.observe.reference.checks import READS, Checks
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

ASKS = {
    "isfinite": lambda loss: not torch.isfinite(loss),
    "all isfinite": lambda loss: not torch.isfinite(loss).all(),
    "isnan or isinf": lambda loss: bool(torch.isnan(loss) | torch.isinf(loss)),
    "itself": lambda loss: bool(loss.ne(loss)) or bool(loss.isinf()),
}


def trained(dtype, looks, large=4e4):
    """Train on batches of which every other one is large, but on none whose loss is found not to be finite."""
    torch.manual_seed(0)
    session, left_out = Session(Schedule(), as_cuda=True), 0
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
        for step in range(8):
            x = torch.randn(16, 8) * (1.0 if step % 2 else large)
            with torch.autocast("cuda", dtype):
                loss = nn.functional.cross_entropy(model(x), torch.randint(3, (16,))) / large
            if looks(loss):
                left_out += 1
                continue
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return session.report("script.py"), left_out


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_a_batch_that_is_left_out_because_its_loss_overflows_is_harm(ask):
    assert trained(torch.bfloat16, ask)[1] == 0  # which has FP32's range
    report, left_out = trained(torch.float16, ask)
    assert left_out == 4
    assert report.verdict.word is Health.UNSAFE, report.verdict.sentence
    assert {f.code for f in report.findings if f.severity is Severity.ERROR} == {"AMP101"}


def test_a_number_that_python_reads_is_named_with_its_line():
    report, left_out = trained(torch.float16, lambda loss: not math.isfinite(loss.item()))
    assert left_out == 4
    assert report.verdict.word is Health.PARTLY_AUDITED, report.verdict.sentence
    (named,) = [what for what in report.not_audited if what.startswith(READS)]
    assert "test_checks.py" in named


@pytest.mark.parametrize("ask", [ASKS["isfinite"], lambda loss: not math.isfinite(loss.item())])
def test_looking_at_what_is_finite_changes_nothing(ask):
    report, left_out = trained(torch.float16, ask, large=100.0)
    assert left_out == 0
    assert report.verdict.word is Health.SAFE, report.verdict.sentence


def named(watched):
    """Return what a mode of the script's own sees of two steps, watched or alone."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    session = Session(Schedule(), as_cuda=True)
    with session.watching() if watched else nullcontext(), Names() as names:
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.randn(3, 4)).to(torch.bfloat16).square().mean()
            assert torch.isfinite(loss)
            assert not math.isnan(loss.item())
            loss.backward()
            optimizer.step()
    return [name for name in names.seen if name.startswith(("aten.ne", "aten.eq", "aten.abs", "aten._local"))]


def test_a_mode_of_the_scripts_own_sees_nothing_of_it():
    assert named(watched=True) == named(watched=False) != []


def test_an_error_of_ours_is_none_of_the_scripts(monkeypatch):
    monkeypatch.setattr(Checks, "_note", lambda *_: 1 / 0)
    report, left_out = trained(torch.float16, ASKS["isfinite"], large=100.0)
    assert left_out == 0
    assert report.verdict.word is not Health.SAFE


def test_a_scaler_of_ones_own_that_looks_at_gradients_is_as_healthy_as_torchs():
    """It begins too high, finds infinite gradients, and halves: what GradScaler does."""
    torch.manual_seed(0)
    session, scale = Session(Schedule(), as_cuda=True), 2.0**20
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(30):
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(model(torch.randn(16, 8) * 4), torch.randint(3, (16,)))
            optimizer.zero_grad()
            (loss * scale).backward()
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            if not torch.isfinite(norm):
                scale /= 2
                continue
            for p in model.parameters():
                p.grad /= scale
            optimizer.step()
    assert scale < 2.0**20
    report = session.report("script.py")
    assert not any(f.severity is Severity.ERROR for f in report.findings), report.findings
    assert not any(what.startswith(READS) for what in report.not_audited)
