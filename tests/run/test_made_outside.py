"""What a step takes from outside of it is named by what has made it; attempts that a script drops do not count."""

import queue
import threading

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

TICKS = torch.arange(20_000, 20_064)
WANTED = torch.sin(TICKS.float() / 5.0)[:, None]


def watched(loop):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        loop()
    assert not session.watcher.broken, session.watcher.not_seen
    return session.report("script.py")


def trains(model, batches, steps=12):
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.mse_loss(model(next(batches)).float(), WANTED)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


# -- tables that are made in the first step, and read in all


class Rotary(nn.Module):
    """Adds waves to its input, from a table that is made when it is called first."""

    def __init__(self, lowered):
        super().__init__()
        self.rates = torch.tensor([[0.2, 0.05, 0.011, 0.7]])
        self.out, self.waves, self.lowered = nn.Linear(4, 1), None, lowered

    def forward(self, ticks):
        if self.waves is None:
            with torch.autocast("cuda", torch.float16, enabled=self.lowered):
                angles = torch.arange(20_064.0)[:, None] @ self.rates
            self.waves = angles.sin().half()
        return self.out(self.waves[ticks].float() * 2.0)


def same(batch):
    while True:
        yield batch


@pytest.mark.parametrize("lowered", [True, False])
def test_a_table_that_the_first_step_makes_is_judged_in_those_that_read_it(lowered):
    torch.manual_seed(0)
    report = watched(lambda: trains(Rotary(lowered), same(TICKS)))
    exact = (torch.arange(20_064.0)[:, None] @ Rotary(lowered).rates)[TICKS]
    off = float((exact.half().float().sin() - exact.sin()).norm() / exact.sin().norm())
    assert off > 0.3
    assert report.verdict.word is (Health.UNSAFE if lowered else Health.SAFE), report.verdict.sentence
    if lowered:
        (found,) = [one for one in report.findings if one.code == "AMP501"]
        made = {line_of(Rotary.forward, "@ self.rates"), line_of(Rotary.forward, "self.waves = ")}
        assert found.sites[0].line in made


# -- numbers that a thread casts


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(2, 1)

    def forward(self, ticks):
        angle = ticks.float()[:, None] / torch.tensor([5.0, 9.0])
        return self.out(torch.cat([angle.sin(), angle.cos()], 1)[:, :2])


def ships(dtype, into):
    for _ in range(12):
        into.put(TICKS.float().to(dtype))


def ships_parts(dtype, into):
    for _ in range(12):
        parts = [tick.to(dtype) for tick in TICKS.float().chunk(4)]
        into.put(torch.cat(parts).clone())


@pytest.mark.parametrize("by", [ships, ships_parts])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_line_of_a_thread_that_rounds_what_a_step_needs_is_named(dtype, by):
    """Not one that puts what was rounded together, or copies it."""

    def loop():
        batches = queue.Queue(2)
        feeder = threading.Thread(target=by, args=(dtype, batches))
        feeder.start()
        trains(Waves(), iter(batches.get, None))
        feeder.join()

    report = watched(loop)
    rounded = dtype is torch.float16
    assert (not torch.equal(TICKS.float(), TICKS.to(dtype).float())) is rounded
    assert report.verdict.word is (Health.UNSAFE if rounded else Health.SAFE), report.verdict.sentence
    if rounded:
        assert report.findings[0].sites[0].line == line_of(by, ".to(dtype)")


# -- attempts whose gradients overflow, and are dropped by the script


@pytest.mark.parametrize(("first", "dropped"), [(2.0**30, True), (2.0**10, False)])
def test_attempts_that_a_script_drops_until_its_scale_fits_are_no_error(first, dropped):
    attempts = []

    def loop():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).half()
        masters = nn.Parameter(torch.cat([one.detach().float().flatten() for one in model.parameters()]))
        optimizer, scale, steps = torch.optim.SGD([masters], 0.1), first, 0
        x, y = torch.randn(32, 8).half(), torch.randn(32, 1)
        while steps < 6:
            for one in model.parameters():
                one.grad = None
            loss = F.mse_loss(model(x).float(), y)
            (loss * scale).backward()
            grad = torch.cat([one.grad.float().flatten() for one in model.parameters()]) / scale
            attempts.append(bool(grad.isfinite().all()))
            if not attempts[-1]:
                scale /= 4.0
                continue
            masters.grad = grad
            optimizer.step()
            steps, at = steps + 1, 0
            with torch.no_grad():
                for one in model.parameters():
                    one.copy_(masters[at : at + one.numel()].view_as(one))
                    at += one.numel()

    report = watched(loop)
    assert (not all(attempts)) is dropped
    assert attempts[-6:] == [True] * 6
    assert not [one for one in report.findings if one.severity.value == "error"]


def test_attempts_that_are_all_dropped_are_an_error():
    def loop():
        torch.manual_seed(0)
        model = nn.Linear(8, 1).half()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x, y = torch.randn(32, 8).half(), torch.randn(32, 1)
        for _ in range(8):
            optimizer.zero_grad()
            (F.mse_loss(model(x).float(), y) * 2.0**30).backward()
            if all(one.grad.isfinite().all() for one in model.parameters()):
                optimizer.step()

    report = watched(loop)
    assert report.verdict.word is not Health.SAFE
    assert [one.code for one in report.findings if one.severity.value == "error"]
