"""A sigmoid that is 1 in half precision: its slope is zero there, and no loss scale gives a gradient."""

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


class Gated(nn.Module):
    """A layer with a gate that begins nearly open."""

    def __init__(self, opens, wide):
        super().__init__()
        self.layer, self.gate, self.wide = nn.Linear(8, 16), nn.Linear(8, 16), wide
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(self.gate.bias, opens)

    def forward(self, x):
        given = self.gate(x).float() if self.wide else self.gate(x)
        return self.layer(x) * torch.sigmoid(given)


def trained(opens, wide, scale):
    """Return how far the gate's bias has moved."""
    torch.manual_seed(0)
    model = Gated(opens, wide)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cuda", init_scale=scale)
    for _ in range(20):
        x = torch.randn(32, 8)
        with torch.autocast("cuda", torch.float16):
            out = model(x)
            loss = (out.float() - 0.1 * x.repeat(1, 2)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return float((model.gate.bias.detach() - opens).abs().max())


def watched(*given):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        moved = trained(*given)
    assert not session.watcher.broken, session.watcher.not_seen
    return moved, session.report("script.py")


@pytest.mark.parametrize(
    ("opens", "wide", "learns"), [(9.0, False, False), (9.0, True, True), (2.0, False, True)]
)
def test_where_the_result_is_at_its_limit_no_loss_scale_is_advised(opens, wide, learns):
    moved, report = watched(opens, wide, 2.0**16)
    assert (moved > 1e-3) is learns
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == [] if learns else ["AMP201"]
    for one in errors:
        assert watched(opens, wide, 2.0**24)[0] == 0.0  # a larger scale gives nothing
        assert "no loss scale heals it: half precision rounds what sigmoid gives to its limit" in one.message
        assert one.origin.line == line_of(Gated.forward, "torch.sigmoid(given)")
        assert not any("init_scale" in line for line in one.fix)
        assert one.fix == (
            "result = self.layer(x)",
            'with torch.autocast("cuda", enabled=False):  # with .float() on given, where that is a tensor',
            "    return result.float() * torch.sigmoid(given)",
        )
