"""A physics residual takes finite differences of half network outputs: rounding divided by dx is all
that is left.
"""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(1, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


class Pinn(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x, dx=5e-4):
        left, right = self.net(x - dx), self.net(x + dx)
        return (right.float() - left.float()) / (2 * dx)


def model():
    torch.manual_seed(0)
    return Pinn()


def batch():
    return torch.linspace(-1, 1, 64)[:, None]


def loss(model, x):
    return (model(x) - torch.cos(x)).pow(2).mean() * 1e-3


TRUTH = {
    "kind": "precision-loss",
    "dtype": "float16",
    "layers": ["net", "net.inner", "net.outer", ""],
    "op": "",
    "fp32_fix": ["net"],
    "scaler": "none",
    "source": "mechanism: cancellation in finite differences of rounded values",
}
