"""Parameters that get no gradient in FP32 either, against gradients that plain torch computes."""

import pytest
import torch
from builders import answer
from torch import nn

from ampcheck.diagnose.gaps import motionless
from ampcheck.renderers.next_step import next_step
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
def test_a_head_that_starts_at_zero_hides_the_gradients_before_it(silent):
    net, batch = built(silent=silent)
    loss(net, batch).backward()
    zero = [name for name, parameter in net.named_parameters() if not parameter.grad.any()]
    assert bool(zero) == silent  # plain torch says so too
    net, batch = built(silent=silent)
    report = audit(Target("head", net, [batch], loss), Settings())
    word, sentence = answer(report)
    assert word is (Health.PARTLY_AUDITED if silent else Health.SAFE)
    assert sentence.startswith("2.*, 0.*, ") == silent
    share = sum(p.numel() for n, p in net.named_parameters() if n in zero) / sum(
        p.numel() for p in net.parameters()
    )
    assert (
        f"{100 * share:.0f} % of the trained parameters: the gradient is exactly zero" in sentence
    ) == silent
    assert next_step(report).endswith("ampcheck head --steps 3") == silent


def test_the_steps_after_the_first_update_show_them():
    net, batch = built(silent=True)
    report = audit(Target("head", net, [batch], loss), Settings(steps=3))
    assert not motionless(report)
    assert answer(report)[0] is Health.SAFE


def test_a_small_branch_that_starts_at_zero_is_not_safe_either():
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
    report = audit(Target("branch", Branch(), [batch], loss), Settings())
    assert answer(report)[0] is Health.PARTLY_AUDITED
    assert motionless(report)[0].startswith("side.*, ")
