"""Numbers that were stored in half precision before a step: FP32 takes them as exact, and the verdict says so."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ampcheck
from ampcheck.observe.execution import run_op
from ampcheck.observe.failure import CAUGHT
from ampcheck.observe.reference.beside_mode import BesideMode
from ampcheck.observe.reference.given import GIVEN
from ampcheck.observe.reference.joined import Joined
from ampcheck.observe.script.held_state import HeldState
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.outcome import HARM_ERROR
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


class Kept:
    """A buffer of samples, written row by row."""

    def __init__(self, dtype):
        self.rows = torch.zeros(64, 8, dtype=dtype)

    def sample(self, step):
        self.rows[step % 64] = torch.randn(8)
        return self.rows[torch.arange(16)]


class MovedAway(nn.Module):
    def forward(self, x):
        return x.float() - 3.0


def audit(given, prepared):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(prepared(), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(given(step)).float().square().mean()
            loss.backward()
            optimizer.step()
    return session.report("script.py")


@pytest.mark.parametrize("prepared", [MovedAway, nn.Identity])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kept", [True, False])
def test_what_was_rounded_before_the_step_is_named_where_it_is_computed_with(kept, dtype, prepared):
    batch = torch.randn(16, 8).to(dtype)
    report = audit(Kept(dtype).sample if kept else lambda _: batch, prepared)
    seen = dtype is torch.float32 or prepared is nn.Identity
    assert report.verdict.word is (Health.SAFE if seen else Health.PARTLY_AUDITED)
    assert (GIVEN in report.verdict.sentence) is not seen
    if not seen:
        where = MovedAway.forward.__code__.co_firstlineno + 1
        name = "tensor of shape (64, 8)" if kept else "x"  # what is kept: no variable leads to it there
        assert f"{name} at test_stored_in_half.py:{where}: {GIVEN}" in report.verdict.sentence


class Weekday(nn.Module):
    def forward(self, day):
        return torch.sin(2 * torch.pi * (day.float() % 7) / 7)


def in_a_helper(values, dtype):
    return {name: value.to(dtype) for name, value in values.items()}


@pytest.mark.parametrize("around", [1000.0, 19000.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_cast_before_the_model_is_called_is_judged_at_its_line(dtype, around):
    given = []

    def batch(_):
        values = {"day": around + torch.randint(0, 700, (64, 8)).float()}
        given.append((values["day"], values["day"].to(dtype)))
        return in_a_helper(values, dtype)["day"]

    report = audit(batch, Weekday)
    lost = max(float((Weekday()(low) - Weekday()(day)).abs().max()) for day, low in given)
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert (report.verdict.word is Health.UNSAFE) is bool(errors) is (lost > 0.5)
    assert not any(what.endswith(GIVEN) for what in report.not_audited)
    if errors:
        lines = {code.__code__.co_firstlineno + 1 for code in (in_a_helper, Weekday.forward)}
        assert {one.sites[0].line for one in errors} <= lines


def test_where_a_product_reads_it_autocast_would_have_rounded_it_anyway():
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 16), torch.randn(16, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), layer(x.bfloat16()))
        assert not torch.equal(layer(x - 3.0), layer(x.bfloat16().float() - 3.0))


def trains_a_cell(cell, dtype):
    """Train four steps that hand on a state; return the last gradient."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    state = torch.zeros(4, 8, dtype=dtype)
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype, enabled=dtype is torch.bfloat16):
            new, state = model[0](torch.randn(4, 8)), state.detach()
            state = model[1](state) + new if cell == "product" else state + new
            loss = F.mse_loss(model[1](state).float(), torch.ones(4, 8))
        loss.backward()
        optimizer.step()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("cell", ["product", "sum"])
def test_a_state_that_is_carried_from_step_to_step_in_half_precision_is_followed(cell):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        low = trains_a_cell(cell, torch.bfloat16)
    wide = trains_a_cell(cell, torch.float32)
    report = session.report("script.py")
    assert not any(what.endswith(GIVEN) for what in report.low.not_audited)
    assert report.verdict.word is Health.SAFE
    assert float((low - wide).norm() / wide.norm()) < HARM_ERROR


@pytest.mark.parametrize(("dtype", "tensors"), [(torch.float16, 2), (torch.float32, 0)])
def test_weights_that_come_in_half_precision_are_named_as_not_seen(dtype, tensors):
    torch.manual_seed(0)
    model = nn.Linear(8, 2).to(dtype)
    report = ampcheck.check(model, torch.randn(16, 8).to(dtype), lambda m, x: m(x).float().square().mean())
    what = "what rounding weights to float16 lost before the audit"
    assert report.not_audited.get(what, 0) == tensors
    fix = [finding.fix for finding in report.findings if finding.code == "AMP302"]
    assert [bool("without .half()" in "".join(lines)) for lines in fix] == [True] * bool(tensors)


class Table(nn.Module):
    """Adds a table that was computed before training, in half precision or in FP32; or one filled row by row."""

    def __init__(self, dtype, table, filled=0, *, moves=False):
        super().__init__()
        self.register_buffer("table", table(torch.arange(2040, 2056).to(dtype)).to(torch.bfloat16))
        self.moves = moves
        for _ in range(filled):
            self.table[::2] = table(torch.arange(2040, 2056, 2).to(dtype)).to(torch.bfloat16)

    def forward(self, x):
        if self.moves:
            self.table.lerp_(torch.ones_like(self.table), 0.5)
        return x + self.table[: x.shape[1]] * x


@pytest.mark.parametrize("filled", [0, 2])
@pytest.mark.parametrize(
    ("table", "seen"),
    [(torch.cos, False), (torch.zeros_like, True), (lambda at: torch.exp2(at * 0 - 3), True)],
    ids=["angles", "zeros", "an eighth"],
)
def test_a_table_in_half_precision_is_named_where_rounding_may_have_made_it(table, seen, filled):
    at = torch.arange(2040, 2056)
    exact = table(at.float()).bfloat16().equal(table(at.bfloat16()).bfloat16())
    assert exact is seen  # what nobody saw, and which numbers say by themselves that nothing was lost
    report = audit(lambda _: torch.randn(16, 8), lambda: Table(torch.bfloat16, table, filled))
    assert report.verdict.word is (Health.SAFE if seen else Health.PARTLY_AUDITED)
    assert (f"model.0.table: {GIVEN}" in report.verdict.sentence) is not seen


def test_a_buffer_that_each_step_writes_is_no_table():
    report = audit(lambda _: torch.randn(16, 8), lambda: Table(torch.float32, torch.cos, moves=True))
    assert not any(what.startswith("model.0.table") for what in report.low.not_audited)


class Careful(nn.Module):
    """Leaves a branch out where it fails."""

    def __init__(self, dtype, *, wide):
        super().__init__()
        self.branch, self.dtype, self.wide = nn.Linear(8, 8), dtype, wide

    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            try:
                return x + self.branch(x.to(self.dtype))
            except RuntimeError:
                return x + self.branch(x.float()) if self.wide else x


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_operation_that_half_precision_keeps_from_running_is_not_safe(dtype, wide):
    report = audit(lambda _: torch.randn(16, 8), lambda: Careful(dtype, wide=wide))
    failed, line = dtype is not torch.float32, Careful.forward.__code__.co_firstlineno + 3
    lost = failed and not wide
    assert report.verdict.word is (
        Health.UNSAFE if lost else Health.PARTLY_AUDITED if failed else Health.SAFE
    )
    assert (f"test_stored_in_half.py:{line}) {CAUGHT}" in report.verdict.sentence) is (failed and wide)
    errors = [(one.code, one.sites[0].module, one.sites[0].line) for one in report.findings]
    assert errors == ([("AMP301", "model.0.branch", line)] if lost else [])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_caught_leaves_a_branch_without_gradients(dtype, wide):
    model = Careful(dtype, wide=wide)
    model(torch.randn(4, 8, requires_grad=True)).sum().backward()
    assert (model.branch.weight.grad is None) is (dtype is not torch.float32 and not wide)


class Pooled(nn.Module):
    """Has a branch that a thread computes, in autocast or without it, and goes on where it fails."""

    def __init__(self, *, within):
        super().__init__()
        self.stem, self.branch, self.within = nn.Linear(8, 8), nn.Linear(8, 8), within

    def call(self, x):
        with torch.autocast("cuda", torch.bfloat16, enabled=self.within):
            return self.branch(x)

    def forward(self, x):
        x = self.stem(x)
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(self.call, x)
        return x if job.exception() else x + job.result()


@pytest.mark.parametrize("within", [False, True])
def test_a_thread_that_computes_outside_of_autocast_is_told_to_switch_it_on(within):
    report = audit(lambda _: torch.randn(16, 8), lambda: Pooled(within=within))
    errors = [one for one in report.findings if one.code == "AMP301"]
    assert bool(errors) is not within
    for found in errors:
        assert "in a thread, where autocast is off" in found.message
        assert "in the function that the thread runs" in found.fix[0]


def test_autocast_holds_only_in_its_thread():
    with torch.autocast("cpu", torch.bfloat16), ThreadPoolExecutor(1) as pool:
        assert torch.is_autocast_enabled("cpu")
        assert not pool.submit(torch.is_autocast_enabled, "cpu").result()


@pytest.mark.parametrize(
    ("write", "lost"),
    [
        (lambda half, close: half.copy_(close), False),
        (lambda half, close: half.lerp_((close + 0.01).bfloat16(), 0.01), True),
        (lambda half, close: half.copy_(half.float().lerp(close + 0.01, 0.01)), True),
    ],
    ids=["copied", "averaged", "averaged and copied back"],
)
def test_what_is_copied_whole_from_fp32_is_rounded_once_and_loses_no_change(write, lost):
    torch.manual_seed(0)
    module = nn.Linear(8, 4).bfloat16().requires_grad_(False)
    shadow = Joined(run_op)
    held = HeldState(shadow, None, lambda: 1.0)
    held.remember([("teacher", module)])
    close = module.weight.float() * (1 + 2.0**-11)  # a quarter of a unit away at most
    with BesideMode(shadow):
        write(module.weight, close)
    held.compare([("teacher", module)])
    assert [(one.name, 2 * one.stuck > one.moved) for one in held.updates] == (
        [("teacher.weight", True)] if lost else []
    )


@pytest.mark.parametrize("in_the_step", [True, False])
def test_weights_may_be_copied_before_and_after_their_step(in_the_step):
    torch.manual_seed(0)
    student, teacher = nn.Linear(8, 4), nn.Linear(8, 4).bfloat16().requires_grad_(False)
    teacher.load_state_dict(student.state_dict())
    shadow = Joined(run_op)
    held = HeldState(shadow, None, lambda: 1.0)
    held.remember([("teacher", teacher)])
    with BesideMode(shadow):
        if in_the_step:
            with torch.no_grad():
                student.weight.add_(torch.full((4, 8), 1e-5, dtype=torch.bfloat16))
        teacher.load_state_dict(student.state_dict())
    held.compare([("teacher", teacher)])
    assert held.updates == []
