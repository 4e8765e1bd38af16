"""A script that scales its loss by hand and limits gradients itself: before it divides them, or after that."""

import threading

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

SCALE = 2.0**15


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))


def limit_rows(weights, times=1.0):
    """Shorten each row of a gradient to a part of its weight's, times what it is multiplied by."""
    for weight in weights:
        dims = tuple(range(1, weight.ndim))
        most = 0.1 * times * weight.detach().norm(dim=dims, keepdim=True).clamp_min(1e-3)
        size = weight.grad.norm(dim=dims, keepdim=True).clamp_min(1e-9)
        weight.grad.mul_((most / size).clamp_max(1.0))


def divide(weights):
    for weight in weights:
        weight.grad.mul_(1 / SCALE)


def clips_first(weights):
    limit_rows(weights)
    divide(weights)


def divides_first(weights):
    divide(weights)
    limit_rows(weights)


def clips_what_is_scaled(weights):
    limit_rows(weights, times=SCALE)
    divide(weights)


def train(model, treat, half):
    """Return the line that limits gradients."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    weights = list(model.parameters())
    torch.manual_seed(1)
    for _ in range(12):
        x = torch.randn(32, 16)
        with torch.autocast("cuda", torch.float16, enabled=half):
            loss = nn.functional.cross_entropy(model(x).float(), x[:, :4].argmax(1))
        optimizer.zero_grad()
        (loss * SCALE).backward()
        treat(weights)
        optimizer.step()


def moved(treat, half=False):
    model, before = net(), net()
    train(model, treat, half)
    return [
        now.detach() - was.detach() for now, was in zip(model.parameters(), before.parameters(), strict=True)
    ]


@pytest.mark.parametrize(
    ("treat", "codes"), [(clips_first, ["AMP401"]), (divides_first, []), (clips_what_is_scaled, [])]
)
def test_own_clipping_of_scaled_gradients_is_found_by_what_it_leaves(treat, codes):
    session = Session(Schedule(), as_cuda=True)
    model = net()
    with session.watching():
        train(model, treat, True)
    report = session.report("script.py")
    assert not session.watcher.broken, session.watcher.not_seen
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == codes
    assert all("limit_rows" not in one.message and "weight.grad.mul_((most" in one.fix[2] for one in errors)
    assert report.loop.scaling == ""
    # FP32 without a scale is the witness of what should have come out
    right = [update.norm() for update in moved(divides_first)]
    mine = [update.norm() for update in moved(treat, half=False)]
    harmed = all(one < 0.1 * other for one, other in zip(mine, right, strict=True))
    assert harmed is bool(codes)


def test_gradients_of_threads_that_the_script_joins_are_clipped_before_their_step():
    """Only recorded steps hear of backwards in threads: the others are no proof that a clipping comes late."""
    model = net()
    weights, sums = list(model.parameters()), []
    optimizer = torch.optim.SGD(weights, 0.05)

    def work(x):
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x).float(), x[:, :4].argmax(1))
        sums.append(backward(loss))

    def backward(loss):
        for weight in weights:
            weight.grad = None
        loss.backward()
        return [weight.grad.clone() for weight in weights]

    session = Session(Schedule())
    with session.watching():
        for _ in range(12):
            sums.clear()
            for _ in range(2):
                thread = threading.Thread(target=work, args=(torch.randn(8, 16),))
                thread.start()
                thread.join()
            for weight, *grads in zip(weights, *sums, strict=True):
                weight.grad = sum(grads) / 2
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
    codes = {one.code for one in session.report("script.py").findings}
    assert "AMP402" not in codes


@pytest.mark.parametrize("first", [True, False])
def test_what_is_added_to_gradients_that_are_scaled_is_no_part_of_safe(first):
    """A pull towards older weights is divided by the scale as well, where it comes first."""
    model, anchor = net(), [weight.detach() + 0.1 for weight in net().parameters()]

    def pull(weights):
        for weight, old in zip(weights, anchor, strict=True):
            weight.grad.add_(weight.detach() - old, alpha=0.5)

    def treat(weights):
        for change in (pull, divide) if first else (divide, pull):
            change(weights)

    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        train(model, treat, True)
    verdict = session.report("script.py").verdict
    assert (verdict.word is Health.SAFE) is not first
    assert ("added to gradients that are still multiplied" in verdict.sentence) is first


def test_first_steps_that_overflow_tell_nothing_of_what_divides_gradients():
    """Copies in FP32 are stepped: where nothing is finite no division shows, and later it does."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = net().half()
        copies = [weight.detach().float().requires_grad_() for weight in model.parameters()]
        optimizer, scale, skips = torch.optim.SGD(copies, 0.05), 2.0**24, 0
        for _ in range(40):
            x = torch.randn(32, 16)
            loss = nn.functional.cross_entropy(model(x.half()).float(), x[:, :4].argmax(1))
            model.zero_grad()
            (loss * scale).backward()
            for copy, weight in zip(copies, model.parameters(), strict=True):
                copy.grad = weight.grad.float() / scale
            if not bool(torch.isfinite(nn.utils.clip_grad_norm_(copies, 1.0))):
                scale, skips = scale / 2, skips + 1
                continue
            optimizer.step()
            with torch.no_grad():
                for copy, weight in zip(copies, model.parameters(), strict=True):
                    weight.copy_(copy)
    report = session.report("script.py")
    assert 2 < skips < 20
    assert report.loop.scaling == ""
    assert sum(event.skipped for event in report.loop.scales) == skips
    assert [one.code for one in report.findings if one.severity is Severity.ERROR] == []
