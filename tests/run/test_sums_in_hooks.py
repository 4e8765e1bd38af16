"""Sums of squared gradients that hooks add up in a pass without a step, as for the importance of weights."""

import inspect

import pytest
import torch
from small_fits import fits, network

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def importance(model, dtype, scale, batches=30):
    """Return the squares of all gradients, summed in hooks; of those here, float16 has none below 2^-25."""
    table, handles = {}, []
    for name, parameter in model.named_parameters():
        table[name] = torch.zeros_like(parameter, dtype=dtype)

        def adds(grad, name=name):
            table[name] += (scale * grad).square().to(dtype)

        handles.append(parameter.register_hook(adds))
    for _ in range(batches):
        model(torch.randn(16, 8)).square().mean().backward()
        model.zero_grad()
    for handle in handles:
        handle.remove()
    return table


def train(dtype, scale):
    """Train, measure, and train on with what was measured."""
    torch.manual_seed(0)
    model, truth = network(), torch.linspace(-1, 1, 8)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for _ in range(12):
        fits(model, optimizer, truth)
    table = importance(model, dtype, scale)
    for _ in range(6):
        fits(model, optimizer, truth)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.grad += table[name].float() * parameter
    return table, [one.detach().clone() for one in model.parameters()]


@pytest.mark.parametrize(
    ("dtype", "scale", "lost"),
    [(torch.float16, 1e-5, True), (torch.float16, 1.0, False), (torch.float32, 1e-5, False)],
)
def test_a_sum_in_hooks_that_half_precision_loses_is_an_error_at_its_line(dtype, scale, lost):
    alone = train(dtype, scale)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        table, weights = train(dtype, scale)
    assert not session.watcher.broken, session.watcher.not_seen
    assert all(map(torch.equal, weights, alone[1]))
    assert all(torch.equal(table[name], one) for name, one in alone[0].items())
    assert all(not one.any() for one in table.values()) is lost
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == (["AMP504"] if lost else [])
    for error in errors:
        code, first = inspect.getsourcelines(importance)
        assert error.origin.line == first + next(n for n, text in enumerate(code) if "table[name] +=" in text)
