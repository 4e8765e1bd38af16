"""What scripts compute without gradients in their steps: teachers; and evaluations beside that, and long ones."""

import pytest
import torch
from code_lines import line_of
from test_evaluations import outliers
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def distilled(evaluate, steps=20):
    """Train beside a teacher that is put into evaluation mode in each step, and evaluate; return the report."""
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        torch.manual_seed(0)
        teacher, student = (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(2))
        optimizer, scaler = torch.optim.SGD(student.parameters(), 0.01), torch.amp.GradScaler("cuda")
        for _ in range(steps):
            x = torch.randn(32, 8)
            teacher.eval()
            with torch.no_grad(), torch.autocast("cuda", torch.float16):
                wanted = teacher(x)
            with torch.autocast("cuda", torch.float16):
                loss = (student(x) - wanted).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            score = evaluate(student)
    assert not session.watcher.broken, session.watcher.not_seen
    return session.report("script.py"), score


@pytest.mark.parametrize("wide", [True, False])
def test_a_teacher_in_each_step_is_no_evaluation(wide):
    """The evaluation is followed: what decides by nothing but rounding is an error."""
    report, _ = distilled(lambda student: outliers(student, wide=wide))
    assert [one.code for one in report.findings if one.severity == "error"] == ([] if wide else ["AMP510"])


def counted(student, *, dtype, batches=3000):
    """Count samples, four at a time, as a script does that wants their share of some."""
    total, x = torch.zeros((), dtype=dtype), torch.randn(4, 8)
    for _ in range(batches):
        total += (student(x).argmax(1) >= 0).sum()
    return total.item()


def added(student, *, dtype, batches=3000):
    """Do the same without writing in place."""
    total, x = torch.zeros((), dtype=dtype), torch.randn(4, 8)
    for _ in range(batches):
        total = total + (student(x).argmax(1) >= 0).sum()
    return total.item()


@pytest.mark.parametrize("count", [counted, added])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_long_sum_in_half_precision_is_not_safe_where_it_is_not_followed_to_its_end(count, dtype):
    report, score = distilled(lambda student: count(student, dtype=dtype))
    half = dtype is torch.float16
    assert score == (8192.0 if half else 12000.0)  # where float16 stands still, and what there are
    assert report.verdict.word is (Health.PARTLY_AUDITED if half else Health.SAFE)
    assert ("adds up numbers in half precision" in report.verdict.sentence) is half


def pascals(wide, steps=40):
    """Learn from a teacher in float16 what it says of pressures, most of them past its range; return how many are."""
    teacher = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).half()
    student = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer, scaler = torch.optim.Adam(student.parameters(), 0.01), torch.amp.GradScaler("cuda", 2.0**8)
    large = 0
    for _ in range(steps):
        pressure = 8e4 + 2e4 * torch.rand(32, 1)
        with torch.no_grad():
            if wide:
                wanted = teacher(((pressure - 9e4) / 1e4).half()).float()
            else:
                wanted = (teacher(pressure.half()) - teacher(pressure.half() - 9e4)).float()
        large += int((pressure > torch.finfo(torch.float16).max).sum())
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.mse_loss(student((pressure - 9e4) / 1e4), wanted)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return large


@pytest.mark.parametrize("wide", [True, False])
def test_an_overflow_before_the_step_is_where_targets_become_infinite(wide):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        large = pascals(wide)
    assert large == 40 * 32
    errors = [one for one in session.report("script.py").findings if one.severity == "error"]
    if wide:
        assert errors == []
        return
    assert errors[0].code == "AMP101"
    assert errors[0].origin.line == line_of(pascals, "teacher(pressure.half())")
