"""Scripts that scale the loss and skip steps themselves: what an overflow leaves in weights and gradients."""

import copy
import math
import os
import subprocess
import sys

import forked
import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.diagnose import rules
from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.stand_in import autocast_stands_in
from ampcheck.observe.script.scaling.losses import factor
from ampcheck.observe.script.scaling.scales_by_hand import ScaleByHand
from ampcheck.run.session import Session
from ampcheck.saved.report_json import read
from ampcheck.values.findings import Severity
from ampcheck.values.loop import SPOILT
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


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


@pytest.mark.parametrize(
    "scaled",
    [
        lambda one, two: one * 1024.0 + two * 1024.0,
        lambda one, two: sum(1024.0 * loss for loss in (one, two)),
        lambda one, two: (one * 1024.0 + two * 1024.0) / 4,
    ],
)
def test_a_sum_of_losses_is_multiplied_by_what_each_of_them_is(scaled):
    weights = torch.randn(3, requires_grad=True)
    one, two = (weights * 2).sum(), weights.square().sum()
    loss = scaled(one, two)
    found = factor(loss)
    by_autograd = torch.autograd.grad(loss, weights, retain_graph=True)[0]
    bare = torch.autograd.grad(one + two, weights)[0]
    assert torch.allclose(by_autograd, bare * found, rtol=1e-5)


@pytest.mark.parametrize(
    "scaled",
    [
        lambda one, two: one * 1024.0 + two * 128.0,
        lambda one, two: torch.add(one * 1024.0, two * 1024.0, alpha=2),
        lambda one, two: one * 1024.0 + two,
    ],
)
def test_losses_that_are_multiplied_differently_have_no_scale_in_common(scaled):
    weights = torch.randn(3, requires_grad=True)
    assert factor(scaled((weights * 2).sum(), weights.square().sum())) == 1.0


def test_two_losses_that_are_scaled_one_by_one_have_a_known_scale():
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer, scale = torch.optim.SGD(model.parameters(), 0.01), 1024.0
        for _ in range(6):
            with torch.autocast("cuda", torch.float16):
                out, target = model(torch.randn(16, 8)), torch.randint(2, (16,))
            losses = nn.functional.cross_entropy(out, target), out.square().mean()
            sum(loss * scale for loss in losses).backward()
            for parameter in model.parameters():
                parameter.grad.div_(scale)
            optimizer.step()
            optimizer.zero_grad()
    report = session.report("script.py")
    assert report.verdict.word is Health.SAFE
    assert "2^10" in report.verdict.sentence


def test_a_check_of_the_loss_alone_lets_infinite_gradients_into_the_weights():
    finite, _, errors = train(of_the_loss, clears=True)
    assert not finite
    assert errors[0].code == "AMP403"
    assert "inf or NaN" in errors[0].message
    assert errors[0].fix[-1].strip() == "optimizer.step()"


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


def test_an_overflow_long_after_the_recorded_steps_shows_when_the_scale_falls():
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer, scale = torch.optim.Adam(model.parameters(), 1e-3), 2.0**10
        for step in range(60):
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(2, (16,)))
            optimizer.zero_grad()
            (loss * scale).backward()
            if not loss.isfinite():
                scale /= 2
                continue
            for parameter in model.parameters():
                parameter.grad.div_(scale)
            optimizer.step()
            scale *= 2 if step % 3 == 2 else 1
    assert not all(bool(one.isfinite().all()) for one in model.parameters())
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == ["AMP403"]
    assert errors[0].fix[-1].strip() == "optimizer.step()"


def test_a_closure_that_scales_too_much_is_an_error_at_its_first_step():
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    x, y = torch.randn(1024, 2), torch.randn(1024, 1)
    with session.watching():
        model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

        def closure():
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                out = model(x)
            loss = (out.float() - y).square().mean() / 1e-6
            (loss * 65536).backward()
            for parameter in model.parameters():
                parameter.grad.div_(65536)
            return loss

        for _ in range(3):
            optimizer.step(closure)
    report = session.report("script.py")
    assert not all(bool(one.isfinite().all()) for one in model.parameters())
    assert "AMP202" in [one.code for one in report.findings if one.severity is Severity.ERROR]
    assert report.loop.first_scales == {"scale by hand": 65536.0}


class Floored(torch.amp.GradScaler):
    """Keeps its scale from falling far."""

    def update(self, new_scale=None):
        super().update(new_scale)
        if self.get_scale() < 2.0**14:
            super().update(2.0**14)


@pytest.mark.parametrize(("large", "bad"), [(1e4, True), (1e-3, False)])
def test_a_scale_that_an_own_update_holds_up_is_said_at_that_update(large, bad):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Linear(8, 2)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-6), Floored("cuda")
        for _ in range(16):
            with torch.autocast("cuda", torch.float16):
                loss = large * model(torch.randn(16, 8)).float().square().sum()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors][:1] == (["AMP206"] if bad else [])
    if bad:
        assert "stays at 2^14, Floored.update() does not lower it further" in errors[0].message
        assert errors[0].origin.line == line_of(Floored.update, "super().update(2.0**14)")


@pytest.mark.parametrize(("turn", "bad"), [((1, 1, 0), True), ((1,) + (0,) * 19, False)])
def test_a_scale_held_up_where_some_batches_overflow_for_ever_is_said_at_that_update(turn, bad):
    torch.manual_seed(0)
    session, skipped = Session(Schedule(), as_cuda=True), 0
    with session.watching():
        model = nn.Linear(8, 2)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-6), Floored("cuda")
        for step in range(60):
            large = 1e4 if turn[step % len(turn)] else 1e-3
            with torch.autocast("cuda", torch.float16):
                loss = large * model(torch.randn(16, 8)).float().square().sum()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            skipped += not all(bool(one.grad.isfinite().all()) for one in model.parameters())
            scaler.step(optimizer)
            scaler.update()
    assert (skipped > 30) is bad
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    said = [one for one in errors if "Floored.update() does not lower it further" in one.message]
    assert bool(said) is bad
    assert all(one.origin.line == line_of(Floored.update, "super().update(2.0**14)") for one in said)


@pytest.mark.parametrize(
    ("turn", "severity"), [((1, 0), "error"), ((1,) + (0,) * 9, "warning"), ((0,), None)]
)
def test_a_fixed_scale_by_hand_that_some_batches_never_fit_is_said_at_its_backward(turn, severity):
    torch.manual_seed(0)
    session, skipped = Session(Schedule(), as_cuda=True), 0
    with session.watching():
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        for step in range(60):
            large = 1e4 if turn[step % len(turn)] else 1e-3
            with torch.autocast("cuda", torch.float16):
                loss = large * model(torch.randn(16, 8)).float().square().sum()
            optimizer.zero_grad()
            scaled(loss, 2.0**14)
            for parameter in model.parameters():
                parameter.grad.div_(2.0**14)
            if gradients(loss, model):
                skipped += 1
                continue
            optimizer.step()
    assert skipped == sum(turn) * 60 // len(turn)
    found = [one for one in session.report("script.py").findings if one.code == "AMP206"]
    assert [one.severity for one in found] == ([Severity(severity)] if severity else [])
    for one in found:
        assert one.message.startswith("the loss scale stays at 2^14, the script never lowers it")
        assert one.origin.line == line_of(scaled, "backward()")


def scaled(loss, scale):
    (loss * scale).backward()


class Pool(nn.Module):
    """The deviation of each channel: where that is 0, the backward of the root is infinity times 0 in fp16."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Conv1d(1, 4, 3), nn.Linear(4, 1)

    def forward(self, x):
        return self.head((self.inner(x).var(2, unbiased=False) + 1e-8).sqrt())


def test_where_a_scale_collapses_is_said_before_what_underflows_then():
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = Pool()
        optimizer, scaler = torch.optim.Adam(model.parameters(), 1e-3), torch.amp.GradScaler("cuda", 2.0**10)
        for step in range(160):
            x = torch.randn(16, 1, 16)
            x[:2] *= step % 2  # two signals are silent
            with torch.autocast("cuda", torch.float16):
                out = model(x)
            optimizer.zero_grad()
            scaler.scale((out.float() - 1).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() < 2.0**-20
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    codes = [one.code for one in errors]
    assert codes[0] == "AMP206"
    assert "AMP201" in codes
    assert errors[0].origin.line == line_of(Pool.forward, "sqrt()")


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
    assert "a later operation hides that" in errors[0].message


def test_a_scale_that_falls_at_every_step_is_looked_into_a_limited_number_of_times():
    looks = []

    def models():
        looks.append(1)
        return [("model", nn.Linear(2, 2))]

    scale = ScaleByHand()
    for step in range(1000):
        assert not scale.multiplied(step, 2.0**20 - step, LOSS, models)
    assert 0 < len(looks) < 100


def test_weights_that_do_not_train_are_no_sign_of_an_overflow():
    frozen = nn.Linear(2, 2)
    frozen.weight.requires_grad_(requires_grad=False).fill_(float("-inf"))  # a mask
    scale = ScaleByHand()
    scale.multiplied(0, 2.0**10, LOSS, lambda: [("model", frozen)])
    assert not scale.multiplied(1, 2.0**9, LOSS, lambda: [("model", frozen)])
    with torch.no_grad():
        frozen.bias.fill_(float("inf"))
    assert scale.multiplied(2, 2.0**8, LOSS, lambda: [("model", frozen)]) == SPOILT


LOSS = nn.Linear(2, 2)(torch.ones(1, 2)).sum()
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


class Norms:
    """An average of gradient norms, which forgets none of them, or those that are no numbers."""

    def __init__(self, forgets):
        self.forgets, self.usual = forgets, 0.0

    def add(self, norm):
        if not (self.forgets and not math.isfinite(norm)):
            self.usual += 0.1 * (norm - self.usual)


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


def accumulate(scales, *, apart=False, steps=8):
    """Train on sums of gradients of two batches whose losses are multiplied by these; `apart` divides each by its own.

    Return the error of the gradients that were stepped last, and what is said to be wrong.
    """
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, 0.01)
        for step in range(steps):
            plain, done = [torch.zeros_like(one) for one in parameters], [0.0] * len(parameters)
            for at in range(2):
                x, target = torch.randn(16, 8), torch.randint(2, (16,))
                alone = torch.autograd.grad(nn.functional.cross_entropy(model(x), target), parameters)
                plain = [a + b for a, b in zip(plain, alone, strict=True)]
                with torch.autocast("cuda", torch.float16):
                    loss = nn.functional.cross_entropy(model(x), target)
                scale = scales(step, at)
                (loss * scale).backward()
                if apart:
                    done = [
                        one + parameter.grad / scale for one, parameter in zip(done, parameters, strict=True)
                    ]
                    optimizer.zero_grad()
            for parameter, summed in zip(parameters, done, strict=True):
                parameter.grad = summed if apart else parameter.grad / scale
            off = [
                (one.grad - exact).norm() / exact.norm() for one, exact in zip(parameters, plain, strict=True)
            ]
            optimizer.step()
            optimizer.zero_grad()
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    return max(map(float, off)), errors


def test_a_scale_that_changes_within_an_accumulation_is_an_error_at_the_backward_that_adds():
    off, errors = accumulate(lambda step, at: 2.0 ** (10 + 2 * at))
    assert off > 0.3
    assert [one.code for one in errors] == ["AMP418"]
    assert "changes its loss scale" in errors[0].message
    assert errors[0].sites[0].file.endswith("test_own_skips.py")


@pytest.mark.parametrize(
    ("scales", "apart"),
    [(lambda step, _: 2.0 ** (10 + step // 4), False), (lambda _, at: 2.0 ** (10 + 2 * at), True)],
)
def test_a_scale_that_changes_between_steps_or_is_divided_away_each_time_is_none(scales, apart):
    off, errors = accumulate(scales, apart=apart)
    assert off < 0.03
    assert errors == []


@pytest.mark.parametrize(
    ("scales", "dynamic"),
    [
        ([256, 1024, 4096, 16384, 4096, 16384, 4096], True),
        ([1024, 512, 256, 128, 64, 32], False),  # which may be a weight of the loss that is lowered
        ([1024, 700, 1024, 700, 1024, 700], False),  # weights of two losses
        ([1024, 4096] * 3, False),
        ([1024] * 6, False),
    ],
)
def test_what_rises_and_falls_by_powers_of_two_is_a_loss_scale(scales, dynamic):
    scale = ScaleByHand()
    for step, by in enumerate(scales):
        scale.multiplied(step, float(by), LOSS, list)
    assert scale.is_dynamic is dynamic


def falls_to(floor, steps=24):
    """Train by a loss of large gradients, with a scale that falls no further; return how many steps overflow."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer, scale, skipped = torch.optim.SGD(model.parameters(), 1e-6), 2.0**16, 0
    for _ in range(steps):
        with torch.autocast("cuda", torch.float16):
            out = model(torch.randn(64, 8))
        loss = (out.float() - 50).square().sum()
        optimizer.zero_grad()
        (loss * scale).backward()
        for parameter in model.parameters():
            parameter.grad.div_(scale)
        if all(bool(one.grad.isfinite().all()) for one in model.parameters()):
            optimizer.step()
        else:
            skipped, scale = skipped + 1, max(scale / 2, floor)
    return skipped


def test_a_scale_that_cannot_fall_far_enough_is_told_how_far():
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        assert falls_to(2.0**12) == 24
    report = session.report("script.py")
    (fix,) = [line for one in report.findings if one.code == "AMP206" for line in one.fix]
    fits = int(fix.partition("2.0**")[2].split()[0])
    with cuda_casting(), autocast_stands_in():
        assert falls_to(2.0**fits) == 16 - fits  # it falls as far as that, and no further step is lost
        assert falls_to(2.0 ** (fits + 1)) == 24


@pytest.mark.parametrize(("every", "error"), [(5, True), (20, False)])
def test_steps_of_one_kind_that_a_lower_limit_of_the_scale_leaves_out_are_never_learned_from(every, error):
    torch.manual_seed(0)
    session, scale, left_out = Session(Schedule(), as_cuda=True), 2.0**16, []
    with session.watching():
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-7)
        for step in range(200):
            target = 5000.0 if step % every == 0 else 1.0
            with torch.autocast("cuda", torch.float16):
                out = model(torch.randn(64, 8))
            loss = (out.float() - target).square().mean()
            optimizer.zero_grad()
            (loss * scale).backward()
            if not all(bool(one.grad.isfinite().all()) for one in model.parameters()):
                scale = max(scale / 2, 2.0**10)
                left_out.append(step)
                continue
            for parameter in model.parameters():
                parameter.grad.div_(scale)
            optimizer.step()
    assert left_out[-5:] == [200 - every * rest for rest in (5, 4, 3, 2, 1)]
    report = session.report("script.py")
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == ["AMP206"] * error
    assert all("stays at 2^10" in one.message for one in errors)


def lets_go(model):
    for one in model.parameters():
        one.grad = None


def clears(model):
    model.zero_grad()


@pytest.mark.parametrize("drops", [lets_go, clears])
@pytest.mark.parametrize("scale", [2.0**14, 2.0**4])
def test_steps_that_a_constant_scale_leaves_out_are_not_called_safe(scale, drops):
    """Each sixth batch overflows, and is left out; the others train."""
    torch.manual_seed(0)
    session, skipped = Session(Schedule(), as_cuda=True), 0
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).half()
        low = list(model.parameters())
        master = [one.detach().float().clone() for one in low]
        optimizer = torch.optim.SGD(master, 1e-4)
        for step in range(60):
            weights = torch.full((16,), 200.0 if step % 6 == 0 else 1.0)
            out = model(torch.randn(16, 8).half()).float()
            rows = nn.functional.cross_entropy(out, torch.randint(2, (16,)), reduction="none")
            loss = (rows * weights).mean()
            (loss * scale).backward()
            if all(bool(one.grad.isfinite().all()) for one in low):
                for wide, one in zip(master, low, strict=True):
                    wide.grad = one.grad.float() / scale
                optimizer.step()
                with torch.no_grad():
                    for wide, one in zip(master, low, strict=True):
                        one.copy_(wide)
            else:
                skipped += 1
            drops(model)
    assert skipped == (10 if scale > 2.0**4 else 0)
    report = session.report("script.py")
    assert (report.verdict.word is Health.SAFE) is (not skipped)
    if skipped and drops is lets_go:
        assert "10 backwards whose gradients were gone before a step" in report.verdict.sentence


def test_a_copy_of_the_model_that_is_cleared_drops_no_step():
    """Two replicas compute gradients, their sum is given to the model, and a step that overflows is left out."""
    torch.manual_seed(0)
    session, scale, taken, skipped = Session(Schedule(), as_cuda=True), 2.0**22, 0, 0
    with session.watching():
        model = nn.Linear(8, 4)
        replicas = [copy.deepcopy(model) for _ in range(2)]
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(90):
            for replica in replicas:
                replica.load_state_dict(model.state_dict())
                replica.zero_grad(set_to_none=True)
                with torch.autocast("cuda", torch.float16):
                    loss = (replica(torch.randn(16, 8)) * 4).float().square().mean()
                (loss * scale).backward()
            sums = [
                sum(one.grad.half() / 2 for one in each).float() / scale
                for each in zip(*(replica.parameters() for replica in replicas), strict=True)
            ]
            if all(bool(one.isfinite().all()) for one in sums):
                taken += 1
                for parameter, one in zip(model.parameters(), sums, strict=True):
                    parameter.grad = one
                optimizer.step()
                scale *= 2 if not step % 9 else 1
            else:
                skipped, scale = skipped + 1, scale / 2
    assert taken > 3 * skipped > 0
    report = session.report("script.py")
    assert not [one for one in report.findings if one.severity is Severity.ERROR]
    assert sum(event.skipped for event in report.loop.scales) == skipped


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


def test_a_rule_that_fails_costs_its_own_answer_only(monkeypatch):
    def broken(report):
        return [1 // len(report.low.sites[None])]

    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Linear(8, 2)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-3), torch.amp.GradScaler("cuda")
        for _ in range(4):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(16, 8)).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert session.report("script.py").verdict.word is Health.SAFE
    monkeypatch.undo()  # of what lets rules fail in tests
    monkeypatch.setitem(rules.RULES, "AMP502", broken)
    report = session.report("script.py")
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert "what AMP502 looks for was not judged" in report.verdict.sentence
    assert "KeyError" in report.verdict.sentence


@pytest.mark.parametrize(("grows", "bad"), [(False, True), (True, False)])
def test_a_scale_by_hand_that_never_grows_falls_below_what_gradients_need(grows, bad):
    torch.manual_seed(0)
    session, value, good = Session(Schedule(), as_cuda=True), 2.0**10, 0
    with session.watching():
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for step in range(400):
            x = torch.randn(16, 8)
            if step % 20 == 10:
                x[0, 0] = math.nan  # a broken batch, now and then
            with torch.autocast("cuda", torch.float16):
                loss = model(x).float().square().mean()
            optimizer.zero_grad()
            (loss * value).backward()
            grads = [parameter.grad for parameter in model.parameters()]
            if all(bool(grad.isfinite().all()) for grad in grads):
                for grad in grads:
                    grad.div_(value)
                optimizer.step()
                good += 1
                if grows and good % 16 == 0:
                    value *= 2
            else:
                value /= 2
    report = session.report("script.py")
    lowest = min(event.after for event in report.loop.scales)
    assert lowest == (2.0**-10 if bad else lowest)
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == (["AMP206"] if bad else [])
    if bad:
        assert "fell from 2^10 to 2^-10" in errors[0].message
        assert "it never grows again" in errors[0].message
        assert "double the scale again" in str(errors[0].fix)


def test_the_step_that_is_skipped_is_that_of_the_backward_before_the_fall():
    """It may be tried once more within the step, or the next step may be the first to have another scale."""
    scale = ScaleByHand()
    for step, by in [
        (0, 2.0**9),
        (0, 2.0**8),
        (1, 2.0**8),
        (2, 2.0**8),
        (2, 2.0**7),
        (3, 2.0**7),
        (4, 2.0**6),
    ]:
        scale.multiplied(step, by, LOSS, list)
    assert [(one.step, one.before, one.skipped) for one in scale.events()] == [
        (0, 2.0**9, True),
        (2, 2.0**8, True),
        (3, 2.0**7, True),
    ]


def undo(model, scale):
    """Divide gradients by the scale, and replace what overflowed by the largest numbers; tell whether any did."""
    over = False
    for one in model.parameters():
        one.grad.div_(scale)
        if not bool(one.grad.isfinite().all()):
            over = True
            one.grad.nan_to_num_()
    return over


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
    assert "without nan_to_num_ here" in first.fix[0]


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
