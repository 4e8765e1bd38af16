"""Class weights of 1e5 in a buffer are cast to the dtype of the logits."""

import torch
from torch import nn


class WeightedBCE(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.register_buffer("w", w)

    def forward(self, logits, y):
        w = self.w.to(logits.dtype)
        pos = nn.functional.softplus(-logits) * y * w
        neg = nn.functional.softplus(logits) * (1 - y)
        return (pos + neg).mean() / 1e4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.bce = (
            nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 3)),
            WeightedBCE(torch.tensor([10.0, 900.0, 1e5])),
        )

    def forward(self, x, y):
        return self.bce(self.body(x), y)


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 10), (torch.rand(32, 3) > 0.5).float()


def loss(m, b):
    return m(*b)


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["bce"],
    "op": "_to_copy,to",
    "fp32_fix": ["bce"],
    "scaler": "none",
    "source": "discuss.pytorch.org pos_weight with amp",
}
