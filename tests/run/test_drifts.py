"""Small weights in half precision that stand still late in a training, beside the same training in FP32."""

import math

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

STEPS = 256


class Scaled(nn.Module):
    """A model with one number of its own that it multiplies by, or some numbers."""

    def __init__(self, start, dtype, shape=()):
        super().__init__()
        self.layer = nn.Linear(8, *shape or (8,))
        self.log_scale = nn.Parameter(torch.full(shape, start, dtype=dtype))

    def forward(self, x):
        return self.layer(x).tanh() * self.log_scale.float().exp()


def train(model, rate, wanted, kind, limit=-math.inf):
    """Move the number towards the wanted one; return the last."""
    other = torch.optim.SGD(model.layer.parameters(), 0.01)
    optimizer = kind([model.log_scale], rate)
    torch.manual_seed(1)
    for _ in range(STEPS):
        with torch.autocast("cuda", torch.bfloat16):
            out = model(torch.randn(32, 8))
        loss = 1e-3 * out.float().square().mean() + (model.log_scale.float() - wanted).square().mean()
        other.zero_grad()
        optimizer.zero_grad()
        loss.backward()
        other.step()
        optimizer.step()
        if limit > -math.inf:
            with torch.no_grad():
                model.log_scale.clamp_(min=limit)
    return float(model.log_scale.detach().float().mean())


def watched(start, dtype, rate, wanted, kind=torch.optim.Adam, *, limit=-math.inf, shape=()):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = Scaled(start, dtype, shape)
        last = train(model, rate, wanted, kind, limit)
    return session.report("script.py"), last


@pytest.mark.parametrize("shape", [(), (40,)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_steps_that_are_rounded_away_later_are_found(dtype, shape):
    start, wanted, rate = -1.5, -4.0, 6e-3  # half a unit is 0.004 up to 2, and 0.008 from there on
    assert torch.finfo(torch.bfloat16).eps * 1.0 / 2 < rate < torch.finfo(torch.bfloat16).eps * 2.0 / 2
    report, last = watched(start, dtype, rate, wanted, shape=shape)
    errors = [(one.code, one.sites[0].slot) for one in report.findings if one.severity.name == "ERROR"]
    if dtype is torch.float32:
        assert last < -2.5
        assert report.verdict.word is Health.SAFE
    else:
        assert last == -2.0  # where it stands still
        assert errors == [("AMP504", "param[log_scale]")]


def test_a_weight_that_stands_still_where_fp32_ends_is_no_error():
    """It is as near as bfloat16 has a number, and its small gradient keeps its sign."""
    unit = 2.0**-7
    wanted = -1.75 - 0.3 * unit
    report, last = watched(-1.5, torch.bfloat16, 0.4, wanted, torch.optim.SGD)
    _, wide = watched(-1.5, torch.float32, 0.4, wanted, torch.optim.SGD)
    assert math.isclose(wide, wanted, abs_tol=0.1 * unit)
    assert 0 < abs(last - wanted) < unit
    assert 0.4 * 2 * abs(last - wanted) < unit / 2  # so that each step is rounded away
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert "log_scale does not move in half precision" in report.verdict.sentence


@pytest.mark.parametrize(("rate", "error"), [(6e-3, False), (4e-3, True)])
def test_a_limit_that_is_not_met_takes_no_steps_away(rate, error):
    """At a power of two, where half precision begins to tell less apart, the limit may be what keeps it there."""
    report, last = watched(-1.5, torch.bfloat16, rate, -4.0, limit=-3.0)
    _, wide = watched(-1.5, torch.float32, rate, -4.0, limit=-3.0)
    errors = [one.code for one in report.findings if one.severity.name == "ERROR"]
    assert -2.0 < last < -1.5 if error else last == -2.0
    assert wide < last - 0.3
    assert errors == ["AMP504"] * error
    assert report.verdict.word is (Health.UNSAFE if error else Health.PARTLY_AUDITED)


def test_a_weight_that_the_script_keeps_at_a_limit_is_no_error():
    report, last = watched(-1.5, torch.bfloat16, 0.02, -4.0, limit=-2.0)
    _, wide = watched(-1.5, torch.float32, 0.02, -4.0, limit=-2.0)
    assert last == wide == -2.0
    assert not [one for one in report.findings if one.severity.name == "ERROR"]
    assert report.verdict.word is not Health.UNSAFE
