"""Classes of scalers that a script writes, in forms that are seldom: watching breaks none of them."""

import functools

import pytest
import torch
from torch import nn

import ampcheck


def _nothing(*_, **__):
    """Do nothing, under several names."""


class NoScaler(torch.amp.GradScaler):
    unscale_ = update = _nothing

    def scale(self, outputs):
        return outputs

    def step(self, optimizer):
        return optimizer.step()


class Partial(torch.amp.GradScaler):
    step = functools.partialmethod(torch.amp.GradScaler.step)


class _Logged:
    """A descriptor that is no function."""

    def __init__(self, function):
        self.function = function

    def __get__(self, scaler, _):
        return functools.partial(self.function, scaler)


class Logged(torch.amp.GradScaler):
    update = _Logged(torch.amp.GradScaler.update)


def trained(kind):
    """Train some steps with a scaler of a kind; return weights and scale."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), 0.1),
        kind("cpu", init_scale=256.0, growth_interval=2),
    )
    for _ in range(5):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(16, 8)).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return [one.detach().clone() for one in model.parameters()], scaler.get_scale()


@pytest.mark.parametrize("kind", [NoScaler, Partial, Logged])
def test_a_class_of_an_unusual_form_trains_as_alone(kind):
    alone, scale = trained(kind)
    watch = ampcheck.watch()
    with watch:
        watched, now = trained(kind)
    assert all(map(torch.equal, alone, watched))
    assert now == scale
    assert not watch.report().verdict.sentence.startswith("the script ended")
