"""Weights in one flat vector that others are filled from, train, and pull some way towards where they have come."""

import pytest
import torch
from code_lines import line_of
from small_fits import fits
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

ROUNDS, STEPS = 40, 2


class Meta:
    def __init__(self, model, dtype):
        self.flat = nn.utils.parameters_to_vector(model.parameters()).detach().to(dtype)

    def fills(self, model):
        with torch.no_grad():
            nn.utils.vector_to_parameters(self.flat.float(), model.parameters())

    def follows(self, ends, rate):
        self.flat += rate * (torch.stack(ends).mean(0) - self.flat.float()).to(self.flat.dtype)


def trained(dtype, rate, lr):
    """Return how far the weights have come over all rounds."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    meta, truth = Meta(model, dtype), torch.randn(8, 1)
    first = meta.flat.float().clone()
    for _ in range(ROUNDS):
        meta.fills(model)
        optimizer = torch.optim.SGD(model.parameters(), lr)
        for _ in range(STEPS):
            fits(model, optimizer, truth)
        meta.follows([nn.utils.parameters_to_vector(model.parameters()).detach()], rate)
    return meta.flat.float() - first


@pytest.mark.parametrize(
    ("dtype", "rate", "lr", "lost"),
    [
        (torch.bfloat16, 0.01, 0.1, True),
        (torch.float32, 0.01, 0.1, False),
        (torch.bfloat16, 1.0, 0.1, False),
    ],
)
def test_small_pulls_on_weights_in_half_precision_are_lost(dtype, rate, lr, lost):
    session = Session(Schedule())
    with session.watching():
        way = trained(dtype, rate, lr)
    exact = trained(torch.float32, rate, lr)
    assert not session.watcher.broken, session.watcher.not_seen
    short = float((way * exact.sign() < 0.5 * exact.abs()).float().mean())
    assert (short > 0.4) is lost
    report = session.report("script.py")
    errors = [one for one in report.findings if one.code == "AMP504"]
    assert bool(errors) is lost
    if lost:
        assert errors[0].origin.line == line_of(Meta.follows, "self.flat +=")
        assert report.verdict.word is Health.UNSAFE
    elif dtype is torch.float32:
        assert report.verdict.word is Health.SAFE
