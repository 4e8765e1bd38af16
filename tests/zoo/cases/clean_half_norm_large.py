"""Vector norms of half rows with elements of 400 (the sum of squares is kept in float32), outside autocast."""

import torch
from torch import nn


class Unit(nn.Module):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return x / x.norm(dim=-1, keepdim=True)


class Net(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.a, self.unit, self.b = nn.Linear(10, d), Unit(), nn.Linear(d, 4)

    def forward(self, x):
        return self.b(self.unit(self.a(x)) * 5)


def model():
    torch.manual_seed(0)
    m = Net()
    with torch.no_grad():
        m.a.weight.mul_(500)
    return m


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 10), torch.randint(0, 4, (32,))


def loss(m, b):
    return nn.functional.cross_entropy(m(b[0]), b[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: norms accumulate in float32",
}
