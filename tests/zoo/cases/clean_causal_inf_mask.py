"""Causal mask of -inf, absorbed by softmax."""

import torch
from torch import nn


class Causal(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(1, 2)
        return x + self.out(scores.masked_fill(future, float("-inf")).softmax(-1) @ v)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(30, 24), Causal(24), Causal(24), nn.LayerNorm(24), nn.Linear(24, 30))


def batch():
    torch.manual_seed(1)
    return torch.randint(30, (4, 12)), torch.randint(30, (48,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: -inf in a causal mask",
}
