"""What a step leaves in a model that the scaler then skips."""

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


class Scaled(nn.Module):
    """Divides by how large its inputs are, on average over the training."""

    def __init__(self, *, wide):
        super().__init__()
        self.wide = wide
        self.register_buffer("square", torch.ones(()))

    def forward(self, x):
        if self.training:
            seen = x.detach().float() if self.wide else x.detach()
            now = (seen * seen).mean()
            self.square.lerp_(now.float(), 0.1)
        return x / (self.square.sqrt() if not self.training else x.float().square().mean().sqrt())


def trains(*, wide):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), Scaled(wide=wide), nn.Linear(16, 2))
    scaler = torch.amp.GradScaler("cuda", 2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(12):
        size = 1e4 if step == 1 else 1.0
        with torch.autocast("cuda", torch.float16):
            loss = (size * model(size * torch.randn(32, 8))).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model[1].square, scaler.get_scale()


@pytest.mark.parametrize("wide", [False, True])
def test_a_buffer_that_a_skipped_step_makes_infinite_is_an_error_where_it_is_so_at_the_end(wide):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        square, scale = trains(wide=wide)
    assert scale < 2.0**10  # the step was skipped
    assert bool(square.isfinite()) is wide
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == ([] if wide else ["AMP506"])
    for error in errors:
        assert error.origin.module == "model.1"
        assert "square is not finite after the step" in error.message
