"""Harm in steps after the first ones, which are not recorded: it is looked for, or what was not seen is said."""

import runpy
from pathlib import Path

import pytest
import torch
from code_lines import line_of
from torch import nn

import ampcheck
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

PROGRAMS = Path(__file__).parents[1] / "zoo" / "programs"


class Net(nn.Module):
    """Adds up what it has seen in half precision, masks with infinities, and overflows from a step on."""

    def __init__(self, by=0.0, overflows_from=10**9):
        super().__init__()
        self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 2)
        self.by, self.calls, self.overflows_from = by, 0, overflows_from
        self.register_buffer("bank", torch.zeros(16, dtype=torch.float16))
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))

    def forward(self, x):
        self.calls += 1
        h = self.stem(x)
        self.bank += (h.detach().abs().half() * self.by).sum(0)
        if self.calls > self.overflows_from:
            h = (h * 5000).square().sqrt() / 5000
        return self.head(h)


def watched(model, steps=24):
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    with ampcheck.watch() as watching:
        for _ in range(steps):
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(model(torch.randn(6, 8)).float(), torch.ones(6).long())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return watching.report()


def test_an_overflow_that_begins_late_is_looked_into():
    report = watched(Net(overflows_from=12))
    assert report.loop.scales[0].step >= 12
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert [finding.code for finding in errors] == ["AMP101"]
    assert errors[0].origin.op == "pow"
    assert "AMP206" in {finding.code for finding in report.findings}
    assert report.verdict.word is Health.UNSAFE


def test_a_scale_that_other_batches_bring_down_later_has_their_operation():
    torch.manual_seed(0)
    critic, actor = Net(), nn.Linear(8, 2)
    optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in (critic, actor)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    target, overflowed = torch.ones(6).long(), 0
    with ampcheck.watch() as watching:
        for step in range(120):
            critic.overflows_from = 0 if step > 20 and step % 3 == 0 else 10**9
            with torch.autocast("cpu", torch.float16):
                x = torch.randn(6, 8)
                losses = [nn.functional.cross_entropy(model(x).float(), target) for model in (critic, actor)]
            overflowed += not losses[0].isfinite()
            for optimizer, loss in zip(optimizers, losses, strict=True):
                optimizer.zero_grad()
                scaler.scale(loss).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
    report = watching.report()
    assert overflowed == len(report.loop.skips("scaler 1")) > 30
    (collapse,) = [finding for finding in report.findings if finding.code == "AMP206"]
    assert collapse.message.endswith("begins in pow")
    assert report.verdict.word is Health.UNSAFE


def test_a_buffer_that_is_ruined_late_keeps_a_report_from_being_safe():
    model = Net(by=1200.0)
    report = watched(model)
    assert not model.bank.isfinite().all()
    assert report.verdict.word is Health.UNSAFE
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert errors[0].origin.line == line_of(Net.forward, "self.bank +=")
    assert any("model.bank" in finding.message for finding in errors)
    assert any("model.bank is not finite at the end" in gap for gap in report.verdict.coverage.gaps)


def test_masks_and_finite_sums_are_no_gap():
    assert watched(Net(by=1e-3)).verdict.word is Health.SAFE


def test_one_skip_where_the_scale_grows_too_far_is_not_looked_into():
    model = Net(overflows_from=10**9)
    model.bank = model.bank.float()  # what half precision holds is followed for longer
    report = watched(model, steps=6)
    assert report.loop.recorded == (0, 1)


@pytest.mark.parametrize(("size", "word"), [(1.0, Health.SAFE), (1e-26, Health.PARTLY_AUDITED)])
def test_gradients_that_move_no_weight_in_fp32_either_are_no_underflow(size, word):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with ampcheck.watch(model, optimizer, scaler, every=1) as watching:
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = size * model(torch.randn(16, 8)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    moved = any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert moved is (size == 1.0)
    report = watching.report()
    assert report.verdict.word is word, report.verdict.sentence
    assert not [one for one in report.findings if one.severity is Severity.ERROR]


@pytest.mark.parametrize(
    ("dtype", "word"), [(torch.float16, Health.PARTLY_AUDITED), (torch.float32, Health.SAFE)]
)
def test_an_average_of_the_weights_in_half_precision_keeps_a_report_from_being_safe(dtype, word):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    average = [parameter.detach().to(dtype) for parameter in model.parameters()]
    average = [tensor.clone() for tensor in average]
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with ampcheck.watch(model, optimizer, scaler, every=2) as watching:
        for _ in range(6):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.randn(16, 8)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            for held, parameter in zip(average, model.parameters(), strict=True):
                held.lerp_(parameter.detach().to(dtype), 1e-4)
    verdict = watching.report().verdict
    assert verdict.word is word, verdict.sentence
    assert any("4 float16 tensors of 108 elements" in gap for gap in verdict.coverage.gaps) is (
        dtype is torch.float16
    )


def test_rounding_in_a_model_that_has_learned_everything_is_no_harm():
    program, session = PROGRAMS / "y43_flat_minima.py", Session(Schedule(), as_cuda=True)
    with session.watching():
        runpy.run_path(str(program), run_name="__main__")
    first, *_, last = [one for one in session.watcher.tape.recorded if one.beside is not None]
    assert last.far_off  # from FP32's own gradient, which is nearly zero
    assert abs(last.losses[1]) < 1e-3 * first.losses[1]
    report = session.report(str(program))
    assert [finding for finding in report.findings if finding.severity is Severity.ERROR] == []
    assert report.outcomes["settled"].error < 0.05


@pytest.mark.parametrize(("scale", "skipped"), [(2.0**6, 0), (2.0**40, 11)])
def test_the_step_after_the_first_that_trains_is_compared(scale, skipped):
    """Until then every step is skipped, and what is recorded of those says nothing of the training."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cuda", init_scale=scale)
        taken = []
        for step in range(40):
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(
                    model(torch.randn(6, 8)).float() * 64, torch.ones(6).long()
                )
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= before:
                taken.append(step)
    compared = [one.step for one in session.watcher.tape.recorded if one.beside is not None]
    assert taken[0] >= skipped
    assert taken[0] + 1 in compared
    assert (taken[0] > 2) is (skipped > 0)
