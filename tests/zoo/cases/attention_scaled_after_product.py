"""Attention that divides by sqrt(d) after the product: the raw scores leave float16 before they are
scaled.
"""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        scores = (self.q(x) @ self.k(x).transpose(1, 2)) / x.shape[-1] ** 0.5
        return x + scores.softmax(-1) @ self.v(x)


def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), Attention(64), nn.LayerNorm(64), Attention(64), nn.Linear(64, 4))
    with torch.no_grad():  # sharp heads, as after long training
        net[3].q.weight.mul_(150)
        net[3].k.weight.mul_(100)
    return net


def batch():
    torch.manual_seed(1)
    return torch.randn(4, 12, 8), torch.randint(4, (4,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).mean(1), batch[1])


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["3"],
    "op": "bmm,matmul",
    "fp32_fix": ["3"],
    "scaler": "none",
    "source": "ultralytics/ultralytics#24990; pytorch/pytorch#60939",
}
