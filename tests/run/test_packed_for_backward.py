"""What a script packs in float16 for the backward, of which the small part becomes zero."""

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule

UNIT = 1e-9


class Spread(nn.Module):
    """A variance that follows what was seen, in units in which it is tiny."""

    def __init__(self):
        super().__init__()
        self.body, self.mix = nn.Sequential(nn.Linear(4, 16), nn.Tanh()), nn.Linear(16, 2)

    def forward(self, x, seen):
        new, old = self.mix(self.body(x)).float().softmax(1).unbind(1)
        spread, every = torch.full_like(new, UNIT), []
        for at in range(seen.shape[1]):
            spread = new * seen[:, at] + old * spread
            every.append(spread)
        return torch.stack(every, 1)


def pack(low, tensor):
    """Keep what is computed in half precision."""
    if tensor.dtype is torch.float32 and not tensor.is_leaf and low is not None:
        return tensor.dtype, tensor.to(low)
    return tensor.dtype, tensor


def gradient(low):
    """Train for some steps; return the last gradient of what mixes."""
    torch.manual_seed(0)
    model = Spread()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    saving = lambda: torch.autograd.graph.saved_tensors_hooks(  # noqa: E731
        lambda tensor: pack(low, tensor), lambda kept: kept[1].to(kept[0])
    )
    for _ in range(6):
        x, seen = torch.randn(32, 4), UNIT * torch.rand(32, 12)
        with saving(), torch.autocast("cpu", torch.bfloat16):
            spread = model(x, seen)
        loss = F.mse_loss(
            spread.log(), (2 * UNIT * x.sigmoid().mean(1, keepdim=True).expand_as(spread)).log()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.mix.weight.grad.clone()


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16, None])
def test_what_becomes_zero_as_it_is_packed_is_said_there(low):
    wide, bad = gradient(None), low is torch.float16
    assert (float((gradient(low) - wide).norm()) > 0.2 * float(wide.norm())) is bad
    session = Session(Schedule())
    with session.watching():
        gradient(low)
    assert not session.watcher.broken, session.watcher.not_seen
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [(one.code, one.origin.line) for one in errors] == [
        ("AMP501", line_of(pack, "tensor.to(low)"))
    ] * bad
    assert all("torch.bfloat16, which has the range of FP32" in one.fix[0] for one in errors)
