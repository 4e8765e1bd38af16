"""A buffer in half precision that a model writes in one step and computes with in a later one."""

from pathlib import Path

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


class Memory(nn.Module):
    """Predicts from how long ago something was seen, as graph memories do."""

    def __init__(self, dtype):
        super().__init__()
        self.register_buffer("seen", torch.full((16,), 33000.0, dtype=dtype))
        self.head = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, who, now):
        age = now - self.seen[who].float()
        with torch.no_grad():
            self.seen[who] = now.to(self.seen.dtype)
        return self.head(torch.exp(-age[:, None] / 10.0)), age


def train(dtype):
    """Return the ages that the model has computed."""
    torch.manual_seed(0)
    model, clock, ages = Memory(dtype), 33000.0, []
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(60):
        who, now = torch.randperm(16)[:8], clock + 6.0 * torch.rand(8)
        clock += 6.0
        with torch.autocast("cpu", torch.bfloat16):
            out, age = model(who, now)
            loss = (out.float().squeeze(1) - torch.exp(-age / 20)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ages.append(age)
    return torch.stack(ages)


@pytest.mark.parametrize(("dtype", "codes"), [(torch.float16, ["AMP501"]), (torch.float32, [])])
def test_times_that_a_buffer_rounds_are_found_where_they_are_written(dtype, codes):
    exact = train(torch.float32)
    session = Session(Schedule())
    with session.watching():
        mine = train(dtype)
    assert bool((mine - exact).abs().mean() > 0.3 * exact.mean()) is bool(codes)
    report = session.report("script.py")
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors][:1] == codes
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    named = [lines[one.sites[0].line - 1] for one in errors]
    assert all("self.seen[who] = now" in line for line in named[:1])
    assert all('register_buffer("seen"' in line for line in named[1:])
