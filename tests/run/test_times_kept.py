"""Times that a model keeps in half precision: they are right at first, and coarse once they have grown."""

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule

STEPS, PLACES = 240, 32


class Clocks(nn.Module):
    """Keeps when each place was seen last, and predicts by how long ago that is."""

    def __init__(self, dtype):
        super().__init__()
        self.read = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        self.register_buffer("seen", torch.zeros(PLACES, dtype=dtype))

    def forward(self, which, now):
        angle = (now - self.seen[which]) * (2 * torch.pi / 24)
        return self.read(torch.stack([angle.sin(), angle.cos()], 1)).squeeze(1)

    def sees(self, which, now):
        self.seen[which] = now.to(self.seen.dtype)


def trained(dtype, hours):
    """Train on a wave of the hours since a place was seen; return the error of the last steps."""
    torch.manual_seed(0)
    model, last, errors = Clocks(dtype), torch.zeros(PLACES), []
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
    for step in range(STEPS):
        which = torch.randperm(PLACES)[:16]
        now = hours * (step + torch.rand(16))
        with torch.autocast("cuda", torch.float16):
            loss = (
                (model(which, now).float() - ((now - last[which]) * (2 * torch.pi / 24)).cos())
                .square()
                .mean()
            )
        model.sees(which, now)
        last[which] = now
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        errors.append(float(loss.detach()))
    return sum(errors[-20:]) / 20


@pytest.mark.parametrize(
    ("dtype", "hours", "coarse"),
    [(torch.float16, 40.0, True), (torch.float32, 40.0, False), (torch.float16, 0.5, False)],
)
def test_times_that_have_become_coarse_are_an_error(dtype, hours, coarse):
    unit = torch.finfo(dtype).eps * hours * STEPS / 2
    assert (unit > 2.0) is coarse  # of 24 hours
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        error = trained(dtype, hours)
    assert not session.watcher.broken, session.watcher.not_seen
    assert (error > 0.05) is coarse
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert bool(errors) is coarse
