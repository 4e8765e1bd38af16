"""Backwards that start from gradients, or return them, beside a scaled loss: what they hold is the script's affair."""

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule

STEPS = 8
KEPT = []  # optimizers


def half(on):
    return torch.autocast("cuda", torch.float16, enabled=on)


def cached(encoder, scaler, on):
    """Gradients of a loss over the whole batch, replayed chunk by chunk: they hold the scale already."""
    optimizer = torch.optim.SGD(encoder.parameters(), 0.5)
    for _ in range(STEPS):
        x = torch.randn(32, 8)
        with torch.no_grad(), half(on):
            codes = encoder(x)
        codes = codes.detach().requires_grad_()
        loss = nn.functional.cross_entropy((codes @ codes.t()).float() / 4, torch.arange(32))
        scaler.scale(loss).backward()
        optimizer.zero_grad()
        for chunk, grad in zip(x.split(8), codes.grad.split(8), strict=True):
            with half(on):
                code = encoder(chunk)
            code.backward(grad)
        scaler.step(optimizer)
        scaler.update()


def projected(encoder, scaler, on):
    """Gradients are projected on those of an older task, whose size drops out: A-GEM."""
    optimizer = torch.optim.SGD(encoder.parameters(), 0.5)
    weights = list(encoder.parameters())
    old = torch.randn(32, 8)
    for _ in range(STEPS):
        x = torch.randn(32, 8)
        with half(on):
            loss = encoder(x).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        with half(on):
            before = encoder(old).float().sub(1).square().mean()
        others = torch.autograd.grad(before, weights)
        along = sum((weight.grad * other).sum() for weight, other in zip(weights, others, strict=True))
        size = sum(other.square().sum() for other in others)
        for weight, other in zip(weights, others, strict=True):
            weight.grad -= torch.minimum(along, torch.zeros(())) / size * other
        scaler.step(optimizer)
        scaler.update()


def measured(encoder, scaler, on):
    """Between two tasks gradients are only measured, without a scale; the optimizer of the next one clears them."""
    for _ in range(2):
        optimizer = torch.optim.SGD(encoder.parameters(), 0.5)
        for _ in range(STEPS):
            optimizer.zero_grad()
            with half(on):
                loss = encoder(torch.randn(32, 8)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        encoder.zero_grad()
        encoder(torch.randn(32, 8)).square().mean().backward()
        KEPT.append(optimizer)


def unscaled(encoder, scaler, on):
    """The loss is not scaled, and its gradients are divided all the same."""
    optimizer = torch.optim.SGD(encoder.parameters(), 0.5)
    for _ in range(STEPS):
        with half(on):
            loss = encoder(torch.randn(32, 8)).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        scaler.scale(loss)
        scaler.step(optimizer)
        scaler.update()


def moved(train, on):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    before = nn.utils.parameters_to_vector(encoder.parameters()).detach().clone()
    train(encoder, torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=on), on)
    return nn.utils.parameters_to_vector(encoder.parameters()).detach() - before


@pytest.mark.parametrize(
    ("train", "codes"), [(cached, []), (projected, []), (measured, []), (unscaled, ["AMP408"])]
)
def test_a_backward_without_a_loss_of_its_own_is_not_called_unscaled(train, codes):
    right = moved(train, on=False)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        mine = moved(train, on=True)
    report = session.report("script.py")
    assert not session.watcher.broken, session.watcher.not_seen
    assert [one.code for one in report.findings if one.severity is Severity.ERROR] == codes
    assert bool((mine - right).norm() > 0.1 * right.norm()) is bool(codes)
