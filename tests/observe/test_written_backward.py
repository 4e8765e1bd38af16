"""Backwards that a program has written itself: what they compute is at their own lines, in the module that ran."""

import inspect

import pytest
import torch
from torch import nn

from ampcheck.observe.recorder import FORWARD_UNSEEN, Recorder
from ampcheck.values.trace import Phase


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        doubled = x + x
        ctx.save_for_backward(doubled)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (doubled,) = ctx.saved_tensors
        return grad * doubled.exp().log()


class Applies(nn.Module):
    def forward(self, x):
        return Square.apply(x.abs())


def line_of(text):
    lines, first = inspect.getsourcelines(inspect.getmodule(Square))
    return next(at for at, line in enumerate(lines, max(first, 1)) if text in line)


def places_in_backward(last, *, compiled):
    """Return by operation of a backward where it is said to be, in a model that ends with a module."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), last)
    recorder = Recorder(model, compiled=compiled)
    with recorder:
        model(torch.randn(2, 4)).sum().backward()
    sites = recorder.trace(recorder.fetch()).sites
    return {site.op: (site.module, site.line) for site in sites if site.op and site.phase is Phase.BACKWARD}


@pytest.mark.parametrize("compiled", [True, False])
def test_each_operation_is_at_its_own_line(compiled):
    backward = places_in_backward(Applies(), compiled=compiled)
    assert backward["exp"] == backward["log"] == ("1", line_of("exp().log()"))
    assert backward["sgn"] == ("1", line_of("apply(x.abs())"))
    assert backward["mm"][0] == "0"


@pytest.mark.parametrize("compiled", [True, False])
def test_one_whose_forward_was_not_seen_is_nobodys(compiled):
    model = Applies()
    y = model(torch.randn(2, 4, requires_grad=True)).sum()
    recorder = Recorder(model, compiled=compiled)
    with recorder:
        y.backward()
    assert recorder.trace(recorder.fetch()).not_audited[FORWARD_UNSEEN] > 0


class Hooks(nn.Module):
    def forward(self, x):
        y = x * x
        y.register_hook(lambda grad: grad.exp())
        return y


def test_a_hook_has_a_line_of_its_own():
    backward = places_in_backward(Hooks(), compiled=False)
    assert backward["exp"] == ("1", line_of("grad.exp()"))
    assert backward["mul"] == ("1", line_of("y = x * x"))
