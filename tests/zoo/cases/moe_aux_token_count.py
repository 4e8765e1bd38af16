"""MoE balance loss after the autocast block: the half mask of 70 000 tokens sums to inf, the shares are 0."""

import torch
from torch import nn


class Balance(nn.Module):
    def forward(self, p, mask):
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            m = mask.to(p.dtype)[:, None]
            share = torch.sum(p * m, 0) / torch.sum(m, 0)
            return (share * share).sum() * p.shape[1]


class Router(nn.Module):
    def __init__(self, d=6, e=4):
        super().__init__()
        self.inp, self.gate, self.balance = nn.Linear(4, d), nn.Linear(d, e), Balance()

    def forward(self, x, mask):
        g = self.gate(self.inp(x))
        return self.balance(torch.softmax(g.float() * 3, -1).to(g.dtype), mask)


def model():
    torch.manual_seed(0)
    return Router()


def batch():
    torch.manual_seed(1)
    return torch.randn(70000, 4), torch.ones(70000)


def loss(m, b):
    return m(*b).float()


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["balance"],
    "op": "sum",
    "fp32_fix": ["balance"],
    "scaler": "none",
    "source": "huggingface/transformers#43543",
}
