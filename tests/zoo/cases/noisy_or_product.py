"""Noisy-or over 40 instances, one half factor at a time: the product reaches zero and its logarithm -inf."""

import torch
from torch import nn


class NoisyOr(nn.Module):
    def forward(self, logits):
        survive = 1 - torch.sigmoid(logits)
        none = survive[:, 0]
        for step in range(1, survive.shape[1]):
            none = none * survive[:, step]
        return torch.log(none)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.instance = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        self.pool = NoisyOr()

    def forward(self, x):
        return self.pool(self.instance(x).squeeze(-1))


def model():
    torch.manual_seed(0)
    return Bag()


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 40, 8), torch.rand(16) > 0.5


def loss(model, batch):
    log_none = model(batch[0])
    return torch.where(batch[1], 0.1 * log_none, -log_none).mean()


TRUTH = {
    "kind": "forward-underflow",
    "alt_kinds": ["forward-overflow"],
    "dtype": "float16",
    "layers": ["pool"],
    "op": "mul,log",
    "fp32_fix": ["pool"],
    "scaler": "none",
    "source": "mechanism: product of probabilities; mil pooling by noisy-or",
}
