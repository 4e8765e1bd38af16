"""Loss scales that fall, or cannot fall: what made them fall, and what is never learned for it."""

import copy

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.stand_in import autocast_stands_in
from ampcheck.observe.script.scaling.scales_by_hand import ScaleByHand
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.loop import SPOILT
from ampcheck.values.settings import Schedule

LOSS = nn.Linear(2, 2)(torch.ones(1, 2)).sum()


class Floored(torch.amp.GradScaler):
    """Keeps its scale from falling far."""

    def update(self, new_scale=None):
        super().update(new_scale)
        if self.get_scale() < 2.0**14:
            super().update(2.0**14)


class Pool(nn.Module):
    """The deviation of each channel: where that is 0, the backward of the root is infinity times 0 in fp16."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Conv1d(1, 4, 3), nn.Linear(4, 1)

    def forward(self, x):
        return self.head((self.inner(x).var(2, unbiased=False) + 1e-8).sqrt())


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
    lines = [line.strip() for line in errors[0].fix]
    assert lines.index("optimizer.step()") < lines.index("optimizer.zero_grad()")


def test_a_step_that_a_check_keeps_from_infinities_is_not_said_to_take_them():
    """The check looks at the gradients of one optimizer of two: those of the other overflow first."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        trunk, head = nn.Linear(8, 8), nn.Linear(8, 1)
        first = torch.optim.SGD(trunk.parameters(), 1e-6)
        second, scale = torch.optim.SGD(head.parameters(), 1e-6), 2.0**4
        for step in range(60):
            first.zero_grad()
            second.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = head(1e-2 * trunk(torch.randn(16, 8)).relu()).sum() + 1e2 * head.bias.sum()
            (loss * scale).backward()
            for parameter in (*trunk.parameters(), *head.parameters()):
                parameter.grad.div_(scale)
            if all(bool(one.grad.isfinite().all()) for one in trunk.parameters()):
                first.step()
                second.step()
                scale *= 2 if step % 3 == 2 else 1
            else:
                scale /= 2
    assert all(bool(one.isfinite().all()) for one in trunk.parameters())
    assert not bool(head.bias.isfinite().all())
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    here = test_a_step_that_a_check_keeps_from_infinities_is_not_said_to_take_them
    assert [(one.code, one.origin.line) for one in errors] == [("AMP403", line_of(here, "second.step()"))]


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
    assert errors[0].code == "AMP206"
    assert "AMP201" in {one[:6] for one in errors[0].follows}
    assert errors[0].origin.line == line_of(Pool.forward, "sqrt()")


def test_a_scale_that_falls_at_every_step_is_looked_into_a_limited_number_of_times():
    looks = []

    def models():
        looks.append(1)
        return [("model", nn.Linear(2, 2))]

    scale = ScaleByHand()
    for step in range(1000):
        assert not scale.multiplied(step, 2.0**20 - step, LOSS, models)
    assert 0 < len(looks) < 100


@pytest.mark.parametrize(
    ("size", "often"), [(1.0, 0), (float("inf"), 64), (float("nan"), 64), (0.0, 64), (None, 64)]
)
def test_only_finite_gradients_are_sent_elsewhere_before_they_are_cleared(size, often):
    """Those of a second loss count, too; zeros and none say nothing of what became of them."""
    other = nn.Linear(2, 2)
    if size is not None:
        other.bias.grad = torch.full((2,), size)
    scale, optimizer = ScaleByHand(), torch.optim.SGD(other.parameters(), 1e-3)
    for step in range(65):
        scale.multiplied(step, 2.0**10, LOSS, list)
        scale.clears(optimizer, unused=True)
    assert sum(event.skipped for event in scale.events()) == often


def test_an_overflow_is_seen_after_many_gradients_that_were_sent():
    other = nn.Linear(2, 2)
    scale, optimizer = ScaleByHand(), torch.optim.SGD(other.parameters(), 1e-3)
    for step in range(400):
        other.bias.grad = torch.full((2,), 1.0 if step < 200 else float("inf"))
        scale.multiplied(step, 2.0**10, LOSS, list)
        scale.clears(optimizer, unused=True)
    assert 8 <= sum(event.skipped for event in scale.events()) <= 200


def test_weights_that_do_not_train_are_no_sign_of_an_overflow():
    frozen = nn.Linear(2, 2)
    frozen.weight.requires_grad_(requires_grad=False).fill_(float("-inf"))  # a mask
    scale = ScaleByHand()
    scale.multiplied(0, 2.0**10, LOSS, lambda: [("model", frozen)])
    assert not scale.multiplied(1, 2.0**9, LOSS, lambda: [("model", frozen)])
    with torch.no_grad():
        frozen.bias.fill_(float("inf"))
    assert scale.multiplied(2, 2.0**8, LOSS, lambda: [("model", frozen)]) == SPOILT


def test_a_scale_that_cannot_fall_far_enough_is_told_how_far():
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        assert falls_to(2.0**12) == 24
    report = session.report("script.py")
    (fix,) = [line for one in report.findings if one.code == "AMP206" for line in one.fix]
    assert "halve the scale further" in fix
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


def test_returned_gradients_that_are_left_out_add_up_with_none():
    """A lowered scale finds the gradients of the step before, which the script has put there by itself."""
    torch.manual_seed(0)
    session, scale, skipped = Session(Schedule(), as_cuda=True), 2.0**12, 0
    with session.watching():
        model = nn.Linear(8, 4)
        parameters = [*model.parameters()]
        optimizer = torch.optim.SGD(parameters, 0.01)
        for step in range(40):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(16, 8)).float().square().mean()
            grads = torch.autograd.grad(loss * scale, parameters)
            if not all(bool(one.isfinite().all()) for one in grads):
                scale, skipped = scale / 2, skipped + 1
                continue
            for parameter, one in zip(parameters, grads, strict=True):
                parameter.grad = one / scale
            optimizer.step()
            scale *= 2 if step < 12 else 1
    assert skipped
    assert "AMP418" not in [one.code for one in session.report("script.py").findings]


class Cautious(torch.amp.GradScaler):
    """Halves its scale where a loss is larger than the one before, or by a step that was skipped only."""

    def watch(self, worse):
        if worse:
            self.update(self.get_scale() / 2)
        else:
            self.update()


@pytest.mark.parametrize("cautious", [True, False])
def test_a_scale_that_a_script_lowers_without_a_skip_is_named_where_it_does(cautious):
    torch.manual_seed(0)
    session, scales = Session(Schedule(), as_cuda=True), []
    with session.watching():
        model, scaler = nn.Linear(8, 1), Cautious("cuda", 2.0**4)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for step in range(80):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(64, 8)).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.watch(cautious and step % 2 == 0)
            scales.append(scaler.get_scale())
    assert (scales[-1] == 2.0**-36) is cautious
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == (["AMP206"] if cautious else [])
    for error in errors:
        assert error.origin.line == line_of(Cautious.watch, "self.get_scale() / 2")
        assert "the script lowers it without a skip" in error.message


def cast_up(model, x):
    return model(x).float()


@pytest.mark.parametrize("smallest", [1.0, 2.0**-24])
def test_a_scale_that_may_not_fall_below_1_is_let_fall_where_only_that_fits(smallest):
    """The largest gradient that is cast to float16 is 2 / 5e-3^2 times the error of the model: a plain product."""
    torch.manual_seed(0)
    session, scale, taken = Session(Schedule(), as_cuda=True), 2.0**6, 0
    with session.watching():
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-8)
        for _ in range(60):
            with torch.autocast("cuda", torch.float16):
                out = cast_up(model, torch.randn(16, 8))
            loss = ((out - 8.0) / 5e-3).square().sum()
            optimizer.zero_grad()
            (loss * scale).backward()
            if not all(bool(one.grad.isfinite().all()) for one in model.parameters()):
                scale = max(scale / 2, smallest)
                continue
            for one in model.parameters():
                one.grad.div_(scale)
            optimizer.step()
            taken += 1
    assert bool(taken) is (smallest < 1.0)
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert bool(errors) is (not taken)
    for error in errors[:1]:
        assert error.code == "AMP202"
        (line,) = error.fix
        fits = float(line.partition("2.0**")[2].partition(" ")[0])
        assert line.startswith("# let the loss scale fall below 1")
        assert (
            2 * 3e4 * 12.0 * 2.0**fits < 2 * torch.finfo(torch.float16).max
        )  # few errors are larger than 12
        assert fits < 0
