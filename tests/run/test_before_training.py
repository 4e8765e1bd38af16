"""What a script computes in half precision before it trains: compared steps go on from what FP32 has there."""

import os
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ampcheck.observe.script import preparation
from ampcheck.observe.script.preparation import Preparation
from ampcheck.run.session import Session
from ampcheck.run.wishes import Wishes, wishes
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

ROWS = 64


def angles(dtype):
    """Return a table of cosines of positions up to 4000, which bfloat16 holds 16 apart."""
    return torch.cos(torch.arange(3000, 3000 + ROWS, dtype=dtype) * 0.5)[:, None].float()


def counted(dtype):
    """Count ten classes from random draws, the first of them 6000 times."""
    counts = torch.zeros(10, dtype=dtype)
    for _ in range(60):
        counts.index_add_(0, torch.zeros(100, dtype=torch.int64), torch.ones(100, dtype=dtype))
        counts.index_add_(0, torch.arange(10), torch.ones(10, dtype=dtype))
    return (counts.float() / 1000).repeat(7)[:ROWS, None]


def steady(dtype):
    """Return what half precision holds as well as FP32 does."""
    return torch.linspace(-1, 1, ROWS, dtype=dtype)[:, None].float()


def train(table, steps=6):
    """Train a model on a table; return its weights."""
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for step in range(steps):
        x = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            out = model(torch.cat([x, table], 1))
            loss = (out.float() - 3 * table).square().mean()
        loss.backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def audit(make, dtype, *, half=True):
    session = Session(Schedule(), as_cuda=True, asked=Wishes(half=half))
    with session.watching():
        torch.manual_seed(0)
        weights = train(make(dtype))
    return session.report("script.py"), weights


def codes(report):
    return {one.code for one in report.findings if one.severity is Severity.ERROR}


@pytest.mark.parametrize("make", [angles, counted])
def test_a_table_that_half_precision_has_spoilt_is_an_error_at_its_line(make):
    low, wide = make(torch.bfloat16), make(torch.float32)
    assert float((low - wide).norm() / wide.norm()) > 0.2  # plain torch's word
    report, _ = audit(make, torch.bfloat16)
    assert report.verdict.word is Health.UNSAFE
    first = next(one for one in report.findings if one.severity is Severity.ERROR)
    assert first.sites[0].file.endswith("test_before_training.py")


@pytest.mark.parametrize(
    ("make", "dtype"), [(steady, torch.bfloat16), (angles, torch.float32), (counted, torch.float32)]
)
def test_what_half_precision_holds_is_safe(make, dtype):
    assert not codes(audit(make, dtype)[0])


@pytest.mark.parametrize("make", [angles, counted, steady])
def test_the_script_has_its_own_numbers(make):
    with_it, without = (audit(make, torch.bfloat16, half=half)[1] for half in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(with_it, without, strict=True))
    assert not _get_current_dispatch_mode_stack()


def sum_tree(dtype, prepared):
    """Draw from a tree of sums that is filled before training and written in each step."""
    session = Session(Schedule(), as_cuda=True, asked=Wishes(half=prepared))
    with session.watching():
        torch.manual_seed(0)
        sums = torch.zeros(8, dtype=dtype)
        for _ in range(50):
            sums.index_add_(0, torch.zeros(100, dtype=torch.int64), torch.ones(100, dtype=dtype))
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for _ in range(12):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(torch.randn(16, 4)).float().square().mean()
            loss.backward()
            optimizer.step()
            sums[1] += 1
            sums[0].sub_(sums[0].clone() * 0)
    return session.report("script.py"), float(sums[0])


def test_a_state_that_was_spoilt_before_training_is_an_error():
    report, total = sum_tree(torch.float16, prepared=True)
    assert total == 2048  # of 5000
    (error,) = [one for one in report.findings if one.severity is Severity.ERROR]
    assert (error.code, "before training" in error.message) == ("AMP504", True)
    wide, total = sum_tree(torch.float32, prepared=True)
    assert total == 5000
    assert not codes(wide)


def test_weights_are_taken_as_they_are():
    session = Session(Schedule(), as_cuda=True, asked=Wishes(half=True))
    with session.watching() as watcher:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).half()
        table = torch.full((8,), 1 / 3).half()
        before = watcher.tape.workers.preparation
        before.end()
        assert all(before.beside(one) is None for one in [*model.parameters(), *model.buffers()])
        known = before.beside(table)
        assert known is not None
        assert torch.equal(known.of(table), torch.full((8,), 1 / 3))
        table += 1
        assert before.beside(table) is None  # written where nobody has followed it


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_process_that_is_forked_is_left_alone():
    before = Preparation()
    before.begin(type("Watcher", (), {"capturing": False}))
    read, write = os.pipe()
    child = os.fork()
    if not child:
        torch.zeros(3, dtype=torch.float16)
        os.write(write, b"1" if before._results.heard else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"0"
    torch.zeros(3, dtype=torch.float16)
    before.end()
    assert before.heard


@pytest.mark.parametrize(
    ("source", "half"),
    [
        ("with torch.autocast('cuda', dtype=torch.float16): pass", False),
        ("with torch.amp.autocast('cuda', torch.bfloat16, enabled=x.half()): pass", False),
        ("a = torch.zeros(3, dtype=torch.float16)", True),
        ("model.half()", True),
        ("from torch import bfloat16\nx = y.to(bfloat16)", True),
        ("x = y.to(dtype)", False),
    ],
)
def test_a_script_that_leaves_half_precision_to_autocast_is_not_followed(source, half):
    assert wishes(source, "a.py").half is half
    session = Session(Schedule(), as_cuda=True, asked=wishes(source, "a.py"))
    with session.watching(), nullcontext():
        assert bool(_get_current_dispatch_mode_stack()) is half


def traced(x):
    return torch.jit.trace(lambda a: a * 2 + 1, x)(x)


def exported(x):
    return torch.export.export(nn.Linear(4, 4), (x,)).module()(x)


def compiled(x):
    return torch.compile(lambda a: a.half() * 2, backend="eager")(x)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:FutureWarning")
@pytest.mark.parametrize("make", [traced, exported, compiled])
def test_code_can_be_turned_into_a_graph_before_training(make):
    def made():
        torch.manual_seed(0)
        assert torch.zeros(3, dtype=torch.float16).sum() == 0
        return make(torch.ones(2, 4))

    session = Session(Schedule(), as_cuda=True, asked=Wishes(half=True))
    with session.watching() as watcher:
        watched = made()
        assert watcher.tape.workers.preparation.mode is None
    assert torch.equal(watched, made())


def test_what_there_was_no_time_for_is_not_safe(monkeypatch):
    monkeypatch.setattr(preparation, "_OPERATIONS", 3)
    report, _ = audit(steady, torch.bfloat16)
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert preparation.UNFOLLOWED in report.verdict.sentence
    monkeypatch.undo()
    assert audit(steady, torch.bfloat16)[0].verdict.word is Health.SAFE
