"""Log of a probability that is zero in half, behind torch.where that replaces it first (double where)."""

import torch
from torch import nn


class Focal(nn.Module):
    def forward(self, logits, y):
        p = torch.sigmoid(logits)
        safe = torch.where(p > 1e-3, p, torch.ones_like(p))
        return (
            -(torch.where(p > 1e-3, torch.log(safe), torch.full_like(safe, -6.9).float()) * y).mean() * 0.02
        )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f, self.focal = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 5)), Focal()

    def forward(self, x, y):
        return self.focal(self.f(x), y)


def model():
    torch.manual_seed(0)
    m = Net()
    with torch.no_grad():
        m.f[2].weight.mul_(20)
    return m


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 8), (torch.rand(32, 5) > 0.5).float()


def loss(m, b):
    return m(*b)


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: double where",
}
