"""Steps in which a model has next to nothing left to learn: they are no error, and nothing says that they are safe."""

import copy

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

STEPS = 60


def trained(rate, watched):
    """Train on numbers that the model can give exactly; yield the model as it is before each step."""
    torch.manual_seed(0)
    model, x = nn.Linear(8, 4), torch.randn(32, 8)
    target = x @ torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), rate)
    before = []
    for _ in range(STEPS):
        before.append(copy.deepcopy(model).requires_grad_(False) if not watched else None)
        optimizer.zero_grad()
        with torch.autocast("cuda" if watched else "cpu", torch.bfloat16):
            given = model(x)
        (given.float() - target).square().mean().backward()
        optimizer.step()
    return before, x, target


def gradient(model, x, target, autocast):
    model = copy.deepcopy(model).requires_grad_(True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        given = model(x)
    loss = (given.float() - target).square().mean()
    loss.backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()]), float(loss.detach())


@pytest.mark.parametrize(("rate", "learned"), [(1.0, True), (0.01, False)])
def test_the_last_gradients_of_a_trained_model_are_no_error_and_are_named(rate, learned):
    models, x, target = trained(rate, watched=False)
    ends = [[gradient(models[at], x, target, autocast) for autocast in (True, False)] for at in (0, 49)]
    (_, (first, loss)), ((low, _), (last, lower)) = ends
    assert (lower < 1e-3 * loss and float(last.norm() / first.norm()) < 1e-2) is learned
    assert (float((low - last).norm() / last.norm()) > 0.15) is learned

    session = Session(Schedule(steps=frozenset({0, 49})), as_cuda=True)
    with session.watching():
        trained(rate, watched=True)
    report = session.report("script.py")
    assert not [one for one in report.findings if one.severity is Severity.ERROR]
    assert report.verdict.word is (Health.PARTLY_AUDITED if learned else Health.SAFE)
    assert ("in a model whose loss has fallen below" in report.verdict.sentence) is learned
