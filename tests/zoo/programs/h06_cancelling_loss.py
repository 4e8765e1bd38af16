import torch
import torch.nn.functional as F
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi = nn.Linear(64, 5)

    def forward(self, s):
        return F.log_softmax(self.pi(self.body(s)), -1)


def model():
    return Policy()


def batch():
    s = torch.randn(64, 12)
    a = torch.randint(0, 5, (64,))
    adv = torch.randn(64)
    return s, a, (adv - adv.mean()) / adv.std()


def loss(model, batch):
    """PPO's first epoch: the ratio is 1 everywhere, so that the loss is zero, and its gradient is not."""
    s, a, adv = batch
    logp = model(s).gather(1, a[:, None]).squeeze(1)
    ratio = torch.exp(logp - logp.detach())
    return -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
