"""The loss scale of a plan, against every power of two tried with the plan at work."""

import copy
from math import log2

import pytest
import torch
from torch import nn

from ampcheck import check
from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.values.findings import Severity
from ampcheck.values.plan import DEFAULT_LOG2_SCALE, Tried

#: Octaves that an advice from a single step leaves below the largest scale that fits.
ROOM = 4


class Distance(nn.Module):
    """Between points in the unit ball: half has no room for what is left of 1 close to its edge, and it divides."""

    def forward(self, x, y):
        with torch.autocast("cpu", enabled=False):
            y = y.to(x.dtype)
            apart = 2 * ((x - y) * (x - y)).sum(-1)
            left = (1 - (x * x).sum(-1)) * (1 - (y * y).sum(-1))
            return torch.acosh(1 + apart / left + 1e-3)


class Ball(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 8))
        self.anchors, self.distance = nn.Parameter(torch.randn(3, 8) * 0.1), Distance()
        with torch.no_grad():
            self.encoder[2].weight.mul_(7.0)

    def within(self, x):
        norm = x.float().norm(dim=-1, keepdim=True)
        return (torch.tanh(norm) * x / norm).to(x.dtype)

    def forward(self, x):
        return -self.distance(self.within(self.encoder(x))[:, None], self.within(self.anchors)[None])


def finite_scales(plan, model, batch, loss):
    """Return the log2 of the loss scales at which every gradient of the planned step is finite, tried one by one."""
    found = []
    for exponent in range(-24, 41):
        planned = plan.apply(copy.deepcopy(model))
        with cuda_casting(), plan.autocast("cpu"):
            value = loss(planned, batch)
        (value * 2.0**exponent).backward()
        if all(parameter.grad.isfinite().all() for parameter in planned.parameters()):
            found.append(exponent)
    return found


@pytest.mark.parametrize("factor", [1.0, 2.0**9])
def test_the_scale_of_a_plan_is_finite_with_it_and_not_needlessly_small(factor):
    torch.manual_seed(0)
    model, batch = Ball(), (torch.randn(16, 6), torch.randint(0, 3, (16,)))

    def loss(model, batch):
        return factor * nn.functional.cross_entropy(model(batch[0]).float(), batch[1])

    report = check(model, batch, loss)
    assert "AMP103" in {found.code for found in report.findings if found.severity is Severity.ERROR}
    plan = report.plan
    assert plan.precision == "fp16"
    assert plan.fp32_modules or plan.fp32_lines
    assert "" not in plan.fp32_modules
    finite = finite_scales(plan, model, batch, loss)
    advised = round(log2(plan.scaler.init_scale))
    assert advised in finite
    assert advised >= min(DEFAULT_LOG2_SCALE, finite[-1] - ROOM)
    assert not report.outcomes["planned"].harmed
    assert {claim.tried for claim in report.claims} == {Tried.CONFIRMED}
    told = next(sentence for sentence in report.advice if "every gradient fits" in sentence)
    low, high = (
        int(end.split("^")[1].split(";")[0]) for end in told.split("from loss scale ")[1].split(" to ")
    )
    assert low < advised < high == finite[-1]
