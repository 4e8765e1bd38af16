"""Contrastive distance outside autocast: squared differences flush to zero in half, and sqrt(0) has no
gradient.
"""

import torch
from torch import nn


class PairDistance(nn.Module):
    def forward(self, a, b):
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return ((a - b) * (a - b)).sum(-1).sqrt()


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16))
        self.distance = PairDistance()
        with torch.no_grad():
            self.net[2].weight.mul_(0.02)
            self.net[2].bias.zero_()

    def forward(self, a, b):
        return self.distance(self.net(a), self.net(b))


def model():
    torch.manual_seed(0)
    return Siamese()


def batch():
    torch.manual_seed(1)
    a = torch.randn(16, 10)
    near = a + 0.005 * torch.randn(16, 10)
    return a, torch.where(torch.arange(16)[:, None] % 2 == 0, near, torch.randn(16, 10))


def loss(model, batch):
    return model(*batch).float().mean()


TRUTH = {
    "kind": "backward-overflow",
    "alt_kinds": ["forward-underflow"],
    "dtype": "float16",
    "layers": ["distance"],
    "op": "sqrt,mul,div",
    "fp32_fix": ["distance"],
    "scaler": "none",
    "source": "pytorch/pytorch#32137 (norms of small half vectors); kornia/kornia#4623 (guards that "
    "flush to zero)",
}
