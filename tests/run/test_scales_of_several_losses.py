"""Several losses with a scale of its own each: none is taken for a change of the other's."""

import math

import pytest
import torch
from torch import nn

from ampcheck.observe.script.scaling.scales_by_hand import ScaleByHand
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

STEPS = 24


class Halving:
    """A loss scale that halves when a gradient overflows; `of` are its weights."""

    def __init__(self, of, log2_scale, lr):
        self.of, self.value, self.dropped = list(of), 2.0**log2_scale, 0
        self.optimizer = torch.optim.SGD(self.of, lr)

    def divide_and_step(self, grads):
        if not all(torch.isfinite(grad).all() for grad in grads):
            self.value, self.dropped = self.value / 2.0, self.dropped + 1
            return
        for weight, grad in zip(self.of, grads, strict=True):
            weight.grad = grad / self.value
        nn.utils.clip_grad_norm_(self.of, 0.5)
        self.optimizer.step()


def parts():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)), nn.Sequential(nn.Linear(8, 1))


def added_up(maker, judge, half):
    """Two backwards a micro-batch, four of them a step, and both step at its end."""
    scales = Halving(maker.parameters(), 10, 0.05), Halving(judge.parameters(), 19 if half else 10, 0.05)
    for _ in range(STEPS):
        for scale in scales:
            scale.optimizer.zero_grad()
        for _ in range(4):
            x = torch.randn(32, 8)
            with torch.autocast("cuda", torch.float16, enabled=half):
                made = maker(x)
                first = (made - x).float().square().mean()
                second = (
                    judge(made.detach()).float().square().mean() + judge(x).float().sub(1).square().mean()
                )
            (first * scales[0].value / 4).backward()
            (second * scales[1].value / 4).backward()
        for scale in scales:
            scale.divide_and_step([weight.grad for weight in scale.of])
    return scales


def asked_for(maker, judge, half):
    """Each asks for its gradients, and steps at once."""
    scales = Halving(maker.parameters(), 10, 0.05), Halving(judge.parameters(), 18 if half else 10, 0.05)
    for _ in range(STEPS):
        x = torch.randn(32, 8)
        with torch.autocast("cuda", torch.float16, enabled=half):
            made = maker(x)
            second = judge(made.detach()).float().square().mean() + judge(x).float().sub(1).square().mean()
        scales[1].divide_and_step(torch.autograd.grad(second * scales[1].value, scales[1].of))
        with torch.autocast("cuda", torch.float16, enabled=half):
            first = 10 * (made - x).float().square().mean() + judge(made).float().sub(1).square().mean()
        scales[0].divide_and_step(torch.autograd.grad(first * scales[0].value, scales[0].of))
    return scales


@pytest.mark.parametrize("train", [added_up, asked_for])
def test_two_scales_that_settle_are_no_scale_that_turns_at_every_step(train):
    exact = parts()
    train(*exact, False)
    networks = parts()
    session = Session(Schedule(first=2, every=8), as_cuda=True)
    with session.watching():
        scales = train(*networks, True)
    assert 0 < scales[1].dropped < STEPS / 4
    report = session.report("script.py")
    assert not session.watcher.broken, session.watcher.not_seen
    assert [one.code for one in report.findings if one.severity is Severity.ERROR] == []
    assert report.loop.scaling == ""
    assert len({event.scaler for event in report.loop.scales}) == 1
    assert sum(event.skipped for event in report.loop.scales) == scales[1].dropped
    for low, high in zip(networks[0].parameters(), exact[0].parameters(), strict=True):
        assert (low - high).norm() < 0.05 * high.norm()


def test_the_scales_of_two_losses_are_told_apart_by_their_weights():
    maker, judge = parts()
    x, hand = torch.randn(4, 8), ScaleByHand()
    for step in range(12):
        shared = maker(x)
        losses = (shared.square().sum(), judge(shared.detach()).sum())
        for loss, by in zip(losses, (2.0**10, 2.0 ** (20 - step // 4)), strict=True):
            hand.multiplied(step, by, loss * by, list)
    assert not hand.is_dynamic
    assert [math.log2(event.after) for event in hand.events()] == [19, 18]
    assert sorted(hand.first().values()) == [2.0**10, 2.0**20]


def test_heads_on_one_trunk_have_scales_of_their_own():
    trunk, heads, hand = nn.Linear(8, 8), [nn.Linear(8, 2), nn.Linear(8, 3)], ScaleByHand()
    for step in range(12):
        for head, by in zip(heads, (2.0**10, 2.0 ** (20 - step // 4)), strict=True):
            hand.multiplied(step, by, head(trunk(torch.randn(4, 8))).sum() * by, list)
    assert not hand.is_dynamic
    assert [math.log2(event.after) for event in hand.events()] == [19, 18]
    assert sorted(hand.first().values()) == [2.0**10, 2.0**20]


def test_layers_that_are_left_out_by_chance_make_no_other_loss():
    torch.manual_seed(0)
    stem, layers, hand = nn.Linear(8, 8), [nn.Linear(8, 8) for _ in range(8)], ScaleByHand()
    for step in range(40):
        h = stem(torch.randn(4, 8))
        for layer in layers:
            h = h + layer(h).tanh() if torch.rand(()) < 0.5 else h
        hand.multiplied(step, 2.0 ** (20 - step), h.sum() * 2.0, list)
    assert list(hand.first().values()) == [2.0**20]
    assert sum(event.skipped for event in hand.events()) == 39


def test_a_step_without_a_division_is_not_known_by_its_limit_alone():
    """Clipped to a limit times the scale, and stepped as it is: the limit says that the script knows, and no more."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = parts()[0]
        optimizer = torch.optim.SGD(model.parameters(), 1e-5)
        for _ in range(8):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(32, 8)).float().square().mean()
            optimizer.zero_grad()
            (loss * 2.0**14).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0**14)
            optimizer.step()
    report = session.report("script.py")
    assert "what divides its gradients was not seen" in report.loop.scaling
    assert report.verdict.word is Health.PARTLY_AUDITED


# -- scalers whose scale has fallen to a number that losses are multiplied by as well


def two_scalers(log2_first, crossed, hook=None):
    """Train two models with a scaler each, one of them at a small scale; return the report and its errors."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        first, second = nn.Linear(8, 4), nn.Linear(8, 4)
        steps = [torch.optim.SGD(model.parameters(), 1e-3) for model in (first, second)]
        scalers = [torch.amp.GradScaler("cuda", 2.0**log2_first), torch.amp.GradScaler("cuda", 2.0**14)]
        for _ in range(STEPS):
            x = torch.randn(32, 8)
            scalers[1].scale(torch.ones(()))  # torch wants a scaler to have scaled something before it steps
            for at, model in enumerate((first, second)):
                with torch.autocast("cuda", torch.float16):
                    out = model(x).float()
                if hook is not None:
                    out.register_hook(hook)
                loss = 0.5 * out.sub(1.0).square().mean()
                steps[at].zero_grad()
                scalers[0 if crossed else at].scale(loss).backward()
                scalers[at].step(steps[at])
            for scaler in scalers:
                scaler.update()
    report = session.report("script.py")
    return report, [one for one in report.findings if one.severity is Severity.ERROR]


@pytest.mark.parametrize("log2_first", [-1, 0, 1])
def test_a_small_scale_is_not_taken_for_that_of_the_other_loss(log2_first):
    assert two_scalers(log2_first, crossed=False)[1] == []


def test_a_loss_that_the_other_scaler_multiplies_is_said():
    _, errors = two_scalers(-1, crossed=True)
    assert errors[0].code == "AMP418"
    assert "scaler 2 divides these gradients by 2^14" in errors[0].message


def test_which_scale_has_multiplied_what_is_not_known_where_the_script_computes_with_one():
    """FP32's gradients hold the scale then, too: one that is crossed later would look like one that is not."""

    def hook(grad):
        return grad / 2.0**8 * 2.0**8

    report, errors = two_scalers(8, crossed=False, hook=hook)
    assert (errors, report.verdict.word) == ([], Health.PARTLY_AUDITED)
    assert any("which of several loss scales" in gap for gap in report.verdict.coverage.gaps)
    _, errors = two_scalers(8, crossed=True, hook=hook)
    assert errors[0].code == "AMP418"
