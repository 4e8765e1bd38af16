"""Nadaraya-Watson smoothing: far queries have kernel weights of 1e-9, zero once matmul casts them to
half: 0 / 0.
"""

import torch
from torch import nn


class KernelSmoother(nn.Module):
    def forward(self, query, keys, values):
        distance = torch.cdist(query.float(), keys.float())
        weight = torch.exp(-(distance**2))
        return (weight @ values) / (weight @ torch.ones_like(values))


class Interpolator(nn.Module):
    def __init__(self):
        super().__init__()
        self.locate, self.smooth = nn.Linear(4, 2), KernelSmoother()
        self.keys, self.values = nn.Parameter(torch.rand(24, 2)), nn.Parameter(torch.randn(24, 5))

    def forward(self, x):
        return self.smooth(self.locate(x), self.keys, self.values)


def model():
    torch.manual_seed(0)
    net = Interpolator()
    with torch.no_grad():
        net.locate.weight.mul_(5)
        net.keys.mul_(1.5)
    return net


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 4), torch.randn(32, 5)


def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


TRUTH = {
    "kind": "forward-underflow",
    "alt_kinds": ["forward-overflow"],
    "dtype": "float16",
    "layers": ["smooth"],
    "op": "_to_copy,mm,div,matmul",
    "fp32_fix": ["smooth"],
    "scaler": "none",
    "source": "mechanism: normalised kernel weights (Nadaraya-Watson), cast to half by matmul",
}
