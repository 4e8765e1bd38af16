"""A Gaussian kernel whose far pairs are exactly zero in half, as they should be."""

import torch
from torch import nn


class RBF(nn.Module):
    def __init__(self, d, k):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(k, d))

    def forward(self, x):
        return torch.exp(-(torch.cdist(x, self.centres.to(x.dtype)) ** 2) / 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.rbf, self.out = nn.Linear(4, 6), RBF(6, 40), nn.Linear(40, 3)

    def forward(self, x):
        k = self.rbf(self.inp(x))
        return self.out(k / (k.sum(-1, keepdim=True) + 1e-3))


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 4) * 2, torch.randint(0, 3, (32,))


def loss(m, b):
    return nn.functional.cross_entropy(m(b[0]), b[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: kernel underflow is meant",
}
