"""A scaler that skips each step of one part of a model: it comes down again in the steps of the others."""

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


class Both(nn.Module):
    """A trunk with two heads, of which each step trains one."""

    def __init__(self):
        super().__init__()
        self.trunk, self.often, self.seldom = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x, head):
        return head(self.trunk(x).tanh())


def trained(size, interval, steps=120):
    """Train the second head in every tenth step, by a loss of some size; return how often that was skipped."""
    torch.manual_seed(0)
    model, skipped = Both(), []
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    scaler = torch.amp.GradScaler("cuda", growth_interval=interval)
    for step in range(steps):
        rare = step % 10 == 9
        with torch.autocast("cuda", torch.float16):
            out = model(torch.randn(32, 8), model.seldom if rare else model.often)
            loss = (out.float() - 1).square().mean() * (size if rare else 1e-3)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        before = model.seldom.weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        if rare:
            skipped.append(torch.equal(before, model.seldom.weight))
    return skipped


@pytest.mark.parametrize(
    ("size", "interval", "code"),
    [
        (10.0, 5, "AMP206"),  # the scale is back when the next one comes
        (10.0, 2000, None),  # it stays where the head's gradients fit
        (1e-3, 5, None),  # they always do
    ],
)
def test_a_head_whose_steps_are_all_skipped_is_an_error(size, interval, code):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        skipped = trained(size, interval)
    assert not session.watcher.broken, session.watcher.not_seen
    assert all(skipped) is (code is not None)
    report = session.report("script.py")
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == [code] * (code is not None)
    assert set(report.loop.untrained) == ({"model.seldom.weight", "model.seldom.bias"} if code else set())
    for one in errors:
        assert "nothing trains model.seldom.weight" in one.message
        assert one.origin.line == line_of(trained, "torch.amp.GradScaler")
