"""Residual branches whose last layer starts at zero: their inner layers get gradients of exactly zero."""

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 24), Residual(24), Residual(24), nn.Linear(24, 5))


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 8), torch.randint(5, (32,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: zero-initialised branches (adapters, LoRA B, ControlNet)",
}
