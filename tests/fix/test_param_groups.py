"""Parameter groups that want different loss scales are told apart; those that agree are not mentioned."""

import torch
from torch import nn

from ampcheck import check
from ampcheck.fix.param_groups import group_modules


class Towers(nn.Module):
    """Two networks that share nothing; the second one's loss is weighted by a factor."""

    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.right = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.left(x), self.right(x)


def optimizers(model):
    return [torch.optim.SGD(model.left.parameters(), lr=0.1), torch.optim.Adam(model.right.parameters())]


def audit(left, right):
    torch.manual_seed(0)

    def loss(model, batch):
        ahead, back = model(batch)
        return left * ahead.float().square().mean() + right * back.float().square().mean()

    return check(Towers(), torch.randn(64, 8), loss, optimizer=optimizers)


def told(report):
    return [sentence for sentence in report.advice if "parameter groups" in sentence]


def test_each_module_belongs_to_the_optimizer_that_holds_its_parameters():
    owners = group_modules(Towers(), optimizers)
    assert owners == {"left.0": "group 0", "left.2": "group 0", "right.0": "group 1", "right.2": "group 1"}


def test_groups_that_agree_are_not_mentioned():
    assert told(audit(1.0, 1.0)) == []


def test_groups_whose_gradients_lie_far_apart_are_told_their_scales():
    (sentence,) = told(audit(1e4, 1e-9))
    assert "group 0 2^" in sentence
    assert "group 1 2^" in sentence
    low, high = (int(sentence.split(f"group {i} 2^")[1].split(",")[0]) for i in (0, 1))
    assert high - low > 20
