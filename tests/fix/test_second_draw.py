"""A remedy that heals a step by chance is told apart by a second draw of its batch."""

import pytest
import torch
from torch import nn

from ampcheck.run.audit import audit
from ampcheck.targets.spec import Target
from ampcheck.values.settings import Settings


class Turned(torch.autograd.Function):
    """Mixes a share of other samples' gradients into each one."""

    @staticmethod
    def forward(ctx, x, share):
        ctx.share = share
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad + ctx.share * grad.roll(1, 0), None


class Part(nn.Module):
    """Turns gradients in low precision only: by one share on the audited batch, by another on any other."""

    def __init__(self, own, other):
        super().__init__()
        self.own, self.other, self.is_own = own, other, True

    def forward(self, x):
        if not torch.is_autocast_enabled("cpu"):
            return x
        return Turned.apply(x, self.own if self.is_own else self.other)


class Net(nn.Module):
    """Two such parts behind a layer that is trained."""

    def __init__(self, batch, first, second):
        super().__init__()
        self.stem, self.first, self.second = nn.Linear(8, 8), Part(*first), Part(*second)
        self.register_buffer("own", batch)

    def forward(self, x):
        self.first.is_own = self.second.is_own = x.equal(self.own)
        return self.second(self.first(self.stem(x)))


def planned(first, second):
    """Return what a plan keeps in FP32, and whether the audited step is harmed."""
    torch.manual_seed(0)
    batch = torch.randn(16, 8)
    case = Target(
        "case", Net(batch, first, second), [batch], lambda model, x: model(x).float().square().mean()
    )
    report = audit(case, Settings(precision="bf16"))
    return report.plan.fp32_modules, report.outcomes["settled"].harmed


@pytest.mark.parametrize("chance", [True, False])
def test_a_place_that_heals_one_batch_and_not_another_is_no_remedy(chance):
    """On the other batch it is the other part that turns the gradients, or still the same one."""
    kept, harmed = planned((0.25, 0.0), (0.17, 0.3)) if chance else planned((0.25, 0.25), (0.17, 0.17))
    assert harmed
    assert kept == (() if chance else ("first",))
