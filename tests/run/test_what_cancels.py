"""What is nearly nothing in FP32, and noise in half precision, harms nothing."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ampcheck.diagnose.rules.faint import faint_gradient
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


class Gated(nn.Module):
    """A gate whose size the normalisation behind it takes away: next to nothing depends on it."""

    def __init__(self):
        super().__init__()
        self.inp, self.gate = nn.Linear(16, 64), nn.Linear(64, 1)
        self.head = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 2))

    def forward(self, x):
        h = self.inp(x)
        return self.head(h * self.gate(h).sigmoid())


def gradients(model, x, y, dtype):
    model.zero_grad()
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        loss = nn.functional.cross_entropy(model(x).float(), y)
    loss.backward()
    return torch.cat([one.grad.flatten() for one in model.gate.parameters()])


def test_a_gate_in_front_of_a_normalisation_has_no_gradient_that_could_be_wrong():
    torch.manual_seed(0)
    session, model = Session(Schedule(), as_cuda=True), Gated()
    x, y = torch.randn(64, 16), torch.randint(2, (64,))
    wide, low = (gradients(model, x, y, dtype) for dtype in (None, torch.bfloat16))
    assert (low - wide).norm() > 3 * wide.norm()  # noise, many times larger than what it is to be
    with session.watching():
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(60):
            with torch.autocast("cuda", torch.bfloat16):
                out = model(x)
            loss = nn.functional.cross_entropy(out.float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert not [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]


@pytest.mark.parametrize(
    ("faint", "named", "severity"),
    [
        ({"gate": 9.0}, "gate", Severity.WARNING),
        ({"gate": 9.0, "head": 0.4}, "head", Severity.ERROR),
        ({"stem": 0.2, "head": 0.4}, "head", Severity.ERROR),
    ],
)
def test_what_cancels_takes_no_name_from_a_part_that_is_wrong(faint, named, severity):
    settled = SimpleNamespace(faint=faint, grad_error=0.01)
    loop = SimpleNamespace(things=(SimpleNamespace(kind="Adam", family="optimizer"),))
    low = SimpleNamespace(sites={})
    report = SimpleNamespace(outcomes={"settled": settled, "rounded": None}, loop=loop, low=low)
    (found,) = faint_gradient(report)
    assert (f" in {named}" in found.message, found.severity) == (True, severity)
