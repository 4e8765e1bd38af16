"""What is said beside a verdict, against gradients that plain torch computes."""

import pytest
import torch
from builders import answer
from torch import nn

from ampcheck.diagnose.caveats import caveats, motionless
from ampcheck.run.audit import audit
from ampcheck.targets.spec import Target
from ampcheck.values.settings import Settings
from ampcheck.values.verdict import Health


def built(*, silent):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    if silent:
        nn.init.zeros_(net[-1].weight)
    return net, (torch.randn(16, 8), torch.randint(0, 4, (16,)))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize("silent", [True, False])
def test_a_head_that_starts_at_zero_is_told_to_hide_the_gradients_before_it(silent):
    net, batch = built(silent=silent)
    loss(net, batch).backward()
    zero = [not parameter.grad.any() for parameter in net.parameters()]
    assert any(zero) == silent  # plain torch says so too
    net, batch = built(silent=silent)
    report = audit(Target("head", net, [batch], loss), Settings())
    assert answer(report)[0] is Health.SAFE
    told = motionless(report)
    assert (True, told) in list(caveats(report)) if silent else not told
    assert told.startswith(f"the gradient of {sum(zero)} of {len(zero)} parameters is exactly zero") == silent


def test_a_small_branch_that_starts_at_zero_is_no_remark():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.side, self.gate = nn.Linear(8, 64), nn.Linear(8, 4), nn.Linear(4, 64)
            self.head = nn.Linear(64, 4)
            nn.init.zeros_(self.gate.weight)

        def forward(self, x):
            return self.head(self.main(x) + self.gate(self.side(x)))

    torch.manual_seed(0)
    batch = (torch.randn(16, 8), torch.randint(0, 4, (16,)))
    assert not motionless(audit(Target("branch", Branch(), [batch], loss), Settings()))
