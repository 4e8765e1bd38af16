"""A loss scale that a script keeps by hand: cast to float16 with its model, held up by a floor, or not checked."""

from dataclasses import replace

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.diagnose.rules.gradients import gradient_overflow
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.maker import LOWERS_SCALE, Maker
from ampcheck.values.settings import Schedule


class Scale(nn.Module):
    """Doubles after some steps without an overflow, and halves after one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("value", torch.tensor(2.0**14))
        self.good = 0

    def forward(self, loss):
        return loss * self.value

    def update(self, *, over):
        self.good = 0 if over else self.good + 1
        if over:
            self.value.mul_(0.5)
        elif self.good % 4 == 0:
            self.value.mul_(2.0)


def errors_of(session):
    assert not session.watcher.broken, session.watcher.not_seen
    return [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]


def in_the_model(*, whole, steps=40):
    """Train a model in float16 that holds the scale, and is cast as a `whole` or without it."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.ModuleDict({"body": nn.Linear(8, 4), "scale": Scale()})
        masters = [one.detach().clone().requires_grad_() for one in model["body"].parameters()]
        (model if whole else model["body"]).half()
        optimizer = torch.optim.SGD(masters, 1e-3)
        for _ in range(steps):
            out = model["body"](torch.randn(16, 8).half())
            loss = nn.functional.cross_entropy(out.float(), torch.randint(4, (16,)))
            model.zero_grad()
            model["scale"](loss).backward()
            weights = list(model["body"].parameters())
            over = any(not torch.isfinite(one.grad).all() for one in weights)
            if not over:
                for master, weight in zip(masters, weights, strict=True):
                    master.grad = weight.grad.float() / model["scale"].value.float()
                optimizer.step()
                with torch.no_grad():
                    for master, weight in zip(masters, weights, strict=True):
                        weight.copy_(master)
            model["scale"].update(over=over)
    return errors_of(session), float(model["scale"].value)


def test_a_scale_that_is_cast_with_its_model_and_becomes_infinite_is_said_at_the_cast():
    found, value = in_the_model(whole=True)
    assert value == float("inf")
    assert [one.code for one in found] == ["AMP206"]
    assert "held in float16, which ends at 65504" in found[0].message
    cast = line_of(in_the_model, ".half()")
    assert found[0].origin.line == cast
    assert f":{cast}: leave the loss scale in FP32" in found[0].fix[0]


def test_the_same_scale_in_fp32_is_none():
    found, value = in_the_model(whole=False)
    assert 0 < value < float("inf")
    assert found == []


def too_large(steps=4):
    """Train at a scale of which the script shows no more than that it multiplies the loss; return the report."""
    torch.manual_seed(0)
    session, scale = Session(Schedule(), as_cuda=True), 2.0**10
    with session.watching():
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), 1e-12)
        for _ in range(steps):
            with torch.autocast("cuda", torch.float16):
                out = 1e4 * model(torch.randn(64, 8)).float()
            optimizer.zero_grad()
            (out.square().mean() * scale).backward()
            for one in model.parameters():
                one.grad.div_(scale)
            optimizer.step()
    return session.report("script.py")


def test_a_scale_that_does_not_fall_far_enough_is_said_at_the_line_that_lowers_it():
    report = too_large()
    loop = replace(
        report.loop, scaling="the loss is multiplied by 2^10; what divides its gradients was not seen"
    )
    lowers = Maker(LOWERS_SCALE, "script.py", 27)
    (found,) = gradient_overflow(replace(report, loop=loop, makers=(lowers,)))
    assert (found.origin.file, found.origin.line) == ("script.py", 27)
    (unknown,) = gradient_overflow(replace(report, loop=loop, makers=()))
    assert unknown.origin.line == line_of(too_large, "backward()")


@pytest.mark.parametrize("early", [True, False])
def test_a_collapse_after_a_backward_that_no_check_saw_comes_of_the_early_unscale(early):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)
        for _ in range(30):
            with torch.autocast("cuda", torch.float16):
                out = model(torch.randn(16, 8))
            optimizer.zero_grad()
            scaler.scale(out[:, :2].float().square().mean()).backward(retain_graph=True)
            if early:
                scaler.unscale_(optimizer)
            scaler.scale(10 * out[:, 2:].float().square().sum()).backward()
            if not early:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert all(torch.isfinite(one).all() for one in model.parameters()) is not early
    found = errors_of(session)
    assert [one.code for one in found] == (["AMP404"] if early else [])
    if early:
        second = line_of(
            test_a_collapse_after_a_backward_that_no_check_saw_comes_of_the_early_unscale, "scale(10 *"
        )
        assert any("AMP206" in one for one in found[0].follows)
        assert any(f":{second}, and clip after it" in line for line in found[0].fix)


def grown(*, looks_at_gradients, steps=80):
    """Train at a scale that grows, and leave out steps by the gradients, or by the loss, which shows no overflow."""
    torch.manual_seed(0)
    session, scale = Session(Schedule(), as_cuda=True), 2.0**14
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for step in range(steps):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(32, 8)).float().square().mean()
            optimizer.zero_grad()
            if not torch.isfinite(loss * scale):
                continue
            (loss * scale).backward()
            if looks_at_gradients and not all(torch.isfinite(one.grad).all() for one in model.parameters()):
                scale /= 2
                continue
            for one in model.parameters():
                one.grad.div_(scale)
            optimizer.step()
            scale *= 2 if step % 4 == 3 else 1
    return errors_of(session), all(bool(torch.isfinite(one).all()) for one in model.parameters())


def test_weights_that_overflowed_gradients_have_spoilt_are_an_error_though_no_backward_follows():
    found, fine = grown(looks_at_gradients=False)
    assert not fine
    assert [one.code for one in found] == ["AMP403"]
    assert found[0].origin.line == line_of(grown, "optimizer.step()")


def test_steps_that_are_left_out_by_their_gradients_spoil_nothing():
    found, fine = grown(looks_at_gradients=True)
    assert fine
    assert found == []
