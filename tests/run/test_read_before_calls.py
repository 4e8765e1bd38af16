"""What a script keeps in half precision and computes with before it calls a module, once it has kept enough."""

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

ROWS = 8


class History:
    """Keeps the last losses of each row, and weighs the rows by their root mean square."""

    def __init__(self, dtype):
        self.losses = torch.zeros(ROWS, 4, dtype=dtype)
        self.seen = 0

    def weights(self):
        if self.seen < 4:
            return torch.ones(ROWS)
        size = (self.losses**2).mean(1).sqrt().float() + 1e-6
        return size / size.mean()

    def keep(self, losses):
        self.losses = torch.cat([self.losses[:, 1:], losses[:, None].to(self.losses.dtype)], 1)
        self.seen += 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("size", [1.0, 1e-2])
def test_weights_of_a_history_in_half_precision_are_judged_where_they_are_computed(dtype, size):
    torch.manual_seed(0)
    history, x = History(dtype), torch.randn(ROWS, 8)
    target = size * torch.linspace(0.1, 1.0, ROWS)[:, None].repeat(1, 2)
    session = Session(Schedule(every=20), as_cuda=True)
    with session.watching():
        model = nn.Linear(8, 2)
        nn.init.uniform_(model.weight, 1e-4, 2e-4)
        nn.init.zeros_(model.bias)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-9), torch.amp.GradScaler("cuda")
        for _ in range(90):
            weights = history.weights()
            with torch.autocast("cuda", torch.float16):
                out = model(x)
            losses = (out.float() - target).square().mean(1)
            history.keep(losses.detach())
            optimizer.zero_grad()
            scaler.scale((losses * weights).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    full = History(torch.float32)
    full.losses, full.seen = history.losses.float(), history.seen
    error = float((history.weights() - full.weights()).norm() / full.weights().norm())
    harmed = dtype is torch.float16 and size < 1.0
    assert (error > 0.15) is harmed  # the squares of small losses underflow

    report = session.report("script.py")
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert (report.verdict.word is Health.UNSAFE) is harmed
    line = History.weights.__code__.co_firstlineno + 3
    assert [one.sites[0].line for one in errors] == [line] * harmed
