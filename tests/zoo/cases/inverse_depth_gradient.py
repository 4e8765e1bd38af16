"""Depth = focal / disparity for far points: f / d fits float16, its derivative f / d^2 does not."""

import torch
from torch import nn


class ToDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("focal", torch.tensor([2.0]))

    def forward(self, disparity):
        return self.focal.to(disparity.dtype) / disparity


class Stereo(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
        self.to_depth = ToDepth()

    def forward(self, x):
        return self.to_depth(self.net(x).sigmoid() * 4e-3 + 1e-3)


def model():
    torch.manual_seed(0)
    return Stereo()


def batch():
    torch.manual_seed(1)
    return torch.randn(2, 2, 16, 16), torch.rand(2, 1, 16, 16) * 1000


def loss(model, batch):
    return (model(batch[0]).float() - batch[1]).abs().mean() * 1e-3


TRUTH = {
    "kind": "backward-overflow",
    "dtype": "float16",
    "layers": ["to_depth"],
    "op": "div",
    "fp32_fix": ["to_depth"],
    "scaler": "none",
    "source": "mechanism: derivative of a quotient with a small half denominator",
}
