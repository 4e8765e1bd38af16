"""Normaliser of about 1e-3: the forward quotient fits, its backward divides twice and passes 65504 at any scale."""

import torch
from torch import nn


class Divide(nn.Module):
    def forward(self, num, den):
        return num / den


class Attn(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.num, self.den, self.divide, self.out = (
            nn.Linear(8, d),
            nn.Linear(8, d),
            Divide(),
            nn.Linear(d, 3),
        )

    def forward(self, x):
        return self.out(torch.tanh(self.divide(self.num(x), torch.sigmoid(self.den(x) - 8)) * 1e-3))


def model():
    torch.manual_seed(0)
    return Attn()


def batch():
    torch.manual_seed(1)
    return torch.randn(24, 8), torch.randint(0, 3, (24,))


def loss(m, b):
    return nn.functional.cross_entropy(m(b[0]), b[1])


TRUTH = {
    "kind": "backward-overflow",
    "dtype": "float16",
    "layers": ["divide"],
    "op": "div,neg,mul",
    "fp32_fix": ["divide"],
    "scaler": "none",
    "source": "mechanism: backward of div is -g * (a / b) / b; idiap/fast-transformers#32",
}
