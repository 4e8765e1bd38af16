"""Scripts that skip steps themselves: what an overflow leaves in weights and gradients."""

import math
import os
import subprocess
import sys

import forked
import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.observe.script.state.never_stepped import NeverStepped
from ampcheck.run.session import Session
from ampcheck.saved.report_json import read
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

ALWAYS = """
import torch
from torch import nn
model = nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(8):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = ((model(torch.randn(16, 8)).float() * 9e4 + 3e5) ** 2).mean()
    loss.backward()
    if not nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite():
        continue
    optimizer.step()
"""


def train(checks, clears, first=2.0**24, steps=24):
    """Train with a scale that falls where `checks` finds an overflow; a skip may clear the gradients."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer, scale = torch.optim.SGD(model.parameters(), 0.01), first
        for _ in range(steps):
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(2, (16,)))
            (loss * scale).backward()
            if checks(loss, model):
                scale = scale / 2
                if clears:
                    optimizer.zero_grad()
                continue
            for parameter in model.parameters():
                parameter.grad.div_(scale)
            optimizer.step()
            optimizer.zero_grad()
    finite = all(bool(one.isfinite().all()) for one in model.parameters())
    taken = all(bool((one.grad is None) or one.grad.isfinite().all()) for one in model.parameters())
    report = session.report("script.py")
    return finite, taken, [one for one in report.findings if one.severity is Severity.ERROR]


def gradients(_, model):
    return not all(bool(one.grad.isfinite().all()) for one in model.parameters())


def of_the_loss(loss, _):
    return not bool(loss.isfinite())


class Norms:
    """An average of gradient norms, which forgets none of them, or those that are no numbers."""

    def __init__(self, forgets):
        self.forgets, self.usual = forgets, 0.0

    def add(self, norm):
        if not (self.forgets and not math.isfinite(norm)):
            self.usual += 0.1 * (norm - self.usual)


def undo(model, scale):
    """Divide gradients by the scale, and replace what overflowed by the largest numbers; tell whether any did."""
    over = False
    for one in model.parameters():
        one.grad.div_(scale)
        if not bool(one.grad.isfinite().all()):
            over = True
            one.grad.nan_to_num_()
    return over


def test_a_check_of_the_loss_alone_lets_infinite_gradients_into_the_weights():
    finite, _, errors = train(of_the_loss, clears=True)
    assert not finite
    assert errors[0].code == "AMP403"
    assert "inf or NaN" in errors[0].message
    lines = [line.strip() for line in errors[0].fix]
    assert lines.index("optimizer.step()") < lines.index("optimizer.zero_grad()")


def test_gradients_that_a_skip_leaves_stay_infinite():
    finite, cleared, errors = train(gradients, clears=False)
    assert finite
    assert not cleared
    assert [one.code for one in errors] == ["AMP206"]
    assert "not cleared" in errors[0].message
    assert errors[0].fix == ("optimizer.zero_grad()  # where a step is skipped, too",)


def test_gradients_of_one_head_that_a_skip_leaves_stay_infinite_beside_finite_ones():
    """Only one of two heads overflows, and the loop adds to what a skipped step has left."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    x, scale = torch.randn(16, 8), 2.0**12
    with session.watching():
        heads = nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 2)])
        optimizer = torch.optim.SGD(heads.parameters(), 0.01)
        for step in range(16):
            with torch.autocast("cuda", torch.float16):
                quiet, loud = (head(x) for head in heads)
                loss = (
                    quiet.float().square().mean() + (loud * (512 if step > 3 else 1)).square().float().mean()
                )
            (loss * scale).backward()
            if not all(bool(one.grad.isfinite().all()) for one in heads.parameters()):
                scale /= 2
                continue
            for parameter in heads.parameters():
                parameter.grad.div_(scale)
            optimizer.step()
            optimizer.zero_grad()
    finite = [bool(head.weight.grad is None or head.weight.grad.isfinite().all()) for head in heads]
    assert finite == [True, False]
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert "AMP206" in [one.code for one in errors]


@pytest.mark.parametrize("first", [2.0**24, 2.0**8])
def test_a_loop_that_checks_gradients_and_clears_them_is_no_error(first):
    finite, cleared, errors = train(gradients, clears=True, first=first)
    assert finite
    assert cleared
    assert not errors


def test_an_overflow_that_the_script_replaces_by_zeros_is_an_overflow():
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for _ in range(8):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(16, 8)).float().square().sum()
            grads = torch.autograd.grad(loss * 2.0**15, [*model.parameters()])
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.grad = torch.nan_to_num(grad / 2.0**15, nan=0.0, posinf=0.0, neginf=0.0)
            optimizer.step()
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == ["AMP202"]
    assert "hides that" in errors[0].message


def test_a_script_that_skips_every_step_has_trained_in_vain(tmp_path):
    (tmp_path / "train.py").write_text(ALWAYS)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    words = [*forked.python(), "-m", "ampcheck", "run", "--as-cuda", "-o", "r.json", "train.py"]
    run = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    report = read(tmp_path / "r.json")
    assert run.returncode == 0, run.stderr  # the script's
    assert report.loop.steps == 0
    assert report.verdict.word is Health.UNSAFE
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    assert [(finding.code, finding.origin.line) for finding in errors] == [("AMP202", 9)]


@pytest.mark.parametrize("forgets", [False, True])
def test_a_number_that_is_none_since_a_step_was_skipped_is_never_safe(forgets):
    torch.manual_seed(0)
    session, norms = Session(Schedule(), as_cuda=True), Norms(forgets)
    unset = {"best": math.nan}  # of the script's own, before any step
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cuda", 2.0**24)
        for _ in range(30):
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(2, (16,)))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norms.add(float(nn.utils.clip_grad_norm_(model.parameters(), 1e9)))
            scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() < 2.0**24
    assert math.isfinite(norms.usual) is forgets
    verdict = session.report("script.py").verdict
    named = any(gap.startswith("norms.usual is NaN") for gap in verdict.coverage.gaps)
    assert named is math.isnan(norms.usual)
    assert (verdict.word is Health.SAFE) is forgets
    assert math.isnan(unset["best"])
    assert not any("unset" in gap for gap in verdict.coverage.gaps)


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")
def test_steps_that_a_script_skips_by_itself_and_a_schedule_that_goes_on():
    torch.manual_seed(0)
    session, skipped = Session(Schedule(), as_cuda=True), 0
    with session.watching():
        model = nn.Linear(8, 2)
        optimizer, scale = torch.optim.SGD(model.parameters(), 1e-3), 2.0**22
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        for _ in range(40):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(16, 8)).float().square().mean()
            optimizer.zero_grad()
            (loss * scale).backward()
            for parameter in model.parameters():
                parameter.grad /= scale
            if all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters()):
                optimizer.step()
            else:
                scale, skipped = scale / 2, skipped + 1
            schedule.step()
    assert 0 < skipped < 40
    said = [one.message for one in session.report("script.py").findings if one.code == "AMP412"]
    assert said == [
        f"{skipped} skipped steps ({skipped / 40:.0%}) still advanced the schedule".replace("%", " %")
    ]


@pytest.mark.parametrize(("often", "severity"), [(2, Severity.ERROR), (8, Severity.WARNING)])
def test_a_schedule_that_passes_while_a_quarter_of_the_steps_is_skipped_is_an_error(often, severity):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model, scaler = nn.Linear(8, 2), torch.amp.GradScaler("cuda", 2.0**10)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 30)
        for step in range(60):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(16, 8) * (1e4 if step % often == 1 else 1.0)).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update(2.0**10)
            schedule.step()
    (found,) = [one for one in session.report("script.py").findings if one.code == "AMP412"]
    assert found.severity is severity


def test_what_replaces_infinite_gradients_before_the_step_is_said_and_not_the_step():
    torch.manual_seed(0)
    session, scale = Session(Schedule(), as_cuda=True), 2.0**28
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for _ in range(24):
            with torch.autocast("cuda", torch.float16):
                out = model(torch.randn(16, 8))
            loss = nn.functional.cross_entropy(out.float(), torch.randint(2, (16,)))
            optimizer.zero_grad()
            (loss * scale).backward()
            if undo(model, scale):
                scale /= 2
            optimizer.step()
    assert not all(bool(one.isfinite().all()) for one in model.parameters())
    first, *_ = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert first.origin.line == line_of(undo, "nan_to_num_")
    assert "without nan_to_num_ here" in first.fix[-1]


def test_gradients_that_are_given_back_are_let_go_of_by_nobody():
    torch.manual_seed(0)
    session, scale = Session(Schedule(), as_cuda=True), 2.0**10
    with session.watching():
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(12):
            for _ in range(2):
                with torch.autocast("cuda", torch.float16):
                    loss = model(torch.randn(16, 8)).float().square().mean()
                grads = torch.autograd.grad(loss * scale, list(model.parameters()))
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.grad = grad / scale
            optimizer.step()
            optimizer.zero_grad()
    assert "were gone" not in session.report("script.py").verdict.sentence


class InHalf:
    """A loss scale in float16 that grows, and is infinite from 2^16 on; or stays below."""

    def __init__(self, most):
        self.value, self.most = torch.tensor(2.0**12, dtype=torch.float16), most

    def update(self, *, finite):
        if finite and float(self.value) < self.most:
            self.value = self.value * 2
        elif not finite:
            self.value = self.value / 2


def grows(most, steps=96, *, asks=True):
    """Train copies in FP32 by gradients that are asked for, or by a backward; return how many steps were taken."""
    torch.manual_seed(0)
    model, taken = nn.Linear(8, 4).half(), 0
    masters = [one.detach().float() for one in model.parameters()]
    optimizer, scale = torch.optim.SGD(masters, 1e-3), InHalf(most)
    for _ in range(steps):
        loss = model(torch.randn(16, 8).half()).float().square().mean()
        if asks:
            grads = torch.autograd.grad(loss * scale.value, list(model.parameters()))
        else:
            for one in model.parameters():
                one.grad = None
            (loss * scale.value).backward()
            grads = [one.grad for one in model.parameters()]
        finite = all(bool(grad.isfinite().all()) for grad in grads)
        if finite:
            for master, grad in zip(masters, grads, strict=True):
                master.grad = grad.float() / scale.value.float()
            optimizer.step()
            taken += 1
            with torch.no_grad():
                for one, master in zip(model.parameters(), masters, strict=True):
                    one.copy_(master)
        scale.update(finite=finite)
    return taken


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("most", [torch.inf, 2.0**14])
def test_gradients_that_are_never_finite_again_are_an_error(most, asks):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        taken = grows(most, asks=asks)
    ends = taken < 96
    assert ends is (most == torch.inf)
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == (["AMP206"] if ends else [])
    for error in errors:
        assert error.origin.line == line_of(InHalf.__init__, "torch.tensor(2.0**12")
        assert "scale.value, made in half precision, is infinite" in error.message
        assert f"no step follows the last {96 - taken} backwards: their gradients" in error.message


def towers(clears, steps=120):
    """Train two towers with two optimizers, from a scale on that is too large; a skip may leave the gradients."""
    torch.manual_seed(0)
    left, right = (nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(2))
    optimizers = [torch.optim.AdamW(one.parameters(), 1e-3) for one in (left, right)]
    parameters, scale, taken = [*left.parameters(), *right.parameters()], 2.0**20, 0
    for _ in range(steps):
        if clears:
            for one in optimizers:
                one.zero_grad()
        with torch.autocast("cuda", torch.float16):
            x = torch.randn(32, 8)
            logits = left(x) @ right(x).t()
            loss = nn.functional.cross_entropy(logits, torch.arange(32), reduction="sum")
        (loss * scale).backward()
        for one in parameters:
            one.grad.div_(scale)
        if not torch.isfinite(nn.utils.clip_grad_norm_(parameters, 20.0)):
            scale /= 2
            continue
        taken += 1
        for one in optimizers:
            one.step()
        for one in optimizers:
            one.zero_grad()
    return taken


@pytest.mark.parametrize("clears", [True, False])
def test_gradients_that_a_skip_of_the_first_step_leaves_are_an_error_where_no_step_ever_follows(clears):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        taken = towers(clears)
    assert bool(taken) is clears
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == ([] if clears else ["AMP206"])
    for error in errors:
        assert error.origin.line == line_of(towers, ".backward()")
        assert "never cleared" in error.message
        assert error.fix == ("optimizer.zero_grad()  # where a step is skipped, too",)


@pytest.mark.parametrize("divides", [True, False])
def test_gradients_of_a_scaled_loss_that_are_asked_for_and_divided_are_stepped_as_they_should_be(divides):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model, scaler = (
            nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)),
            torch.amp.GradScaler("cuda", 2.0**12),
        )
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        for _ in range(12):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(16, 8)).float().square().mean()
            grads = torch.autograd.grad(scaler.scale(loss), list(model.parameters()))
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.grad = grad / scaler.get_scale() if divides else grad
            optimizer.step()
    report = session.report("script.py")
    assert {one.code for one in report.findings if one.severity is Severity.ERROR} == (
        set() if divides else {"AMP403"}
    )
    assert (report.verdict.word is Health.SAFE) is divides


def test_gradients_that_are_never_finite_in_fp32_are_no_error_of_half_precision_and_not_safe():
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for step in range(60):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(torch.randn(16, 8)).float().square().mean()
            grads = torch.autograd.grad(loss * (torch.nan if step > 9 else 1.0), list(model.parameters()))
            if all(bool(grad.isfinite().all()) for grad in grads):
                for one, grad in zip(model.parameters(), grads, strict=True):
                    one.grad = grad
                optimizer.step()
    report = session.report("script.py")
    assert not [one for one in report.findings if one.severity is Severity.ERROR]
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert "the last 50 backwards gave no finite gradients" in report.verdict.sentence


@pytest.mark.parametrize("scaler", [True, False])
def test_gradients_that_a_step_adds_up_are_looked_at_in_the_first_steps_at_most(scaler, monkeypatch):
    looks, taken = [], []
    ran = NeverStepped.ran
    monkeypatch.setattr(NeverStepped, "ran", lambda one, grads: looks.append(len(taken)) or ran(one, grads))
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    with Session(Schedule(), as_cuda=True).watching():
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scale = torch.amp.GradScaler("cuda", enabled=scaler)
        for _ in range(6):
            for _ in range(40):
                with torch.autocast("cuda", torch.float16):
                    loss = model(torch.randn(16, 8)).float().square().mean()
                scale.scale(loss / 40).backward()
            scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()
            taken.append(None)
    assert set(looks) <= {0}


@pytest.mark.parametrize("later", [1e9, 1.0])
def test_steps_that_a_script_leaves_out_beside_its_scaler_until_the_end_are_an_error(later):
    """Nothing lowers the scale: update() is left out with the step."""
    torch.manual_seed(0)
    session, taken = Session(Schedule(), as_cuda=True), 0
    with session.watching():
        model, scaler = nn.Linear(8, 4), torch.amp.GradScaler("cuda", 2.0**8)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for step in range(96):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                out = model(torch.randn(16, 8))
            scaler.scale(out.float().square().mean() * (later if step > 20 else 1.0)).backward()
            scaler.unscale_(optimizer)
            if not nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite():
                scaler._per_optimizer_states.clear()
                continue
            scaler.step(optimizer)
            scaler.update()
            taken += 1
    assert taken == (21 if later > 1.0 else 96)
    report = session.report("script.py")
    errors = [one.code for one in report.findings if one.severity is Severity.ERROR]
    assert bool(errors) is (later > 1.0)
    assert (report.verdict.word is Health.SAFE) is (later == 1.0)
