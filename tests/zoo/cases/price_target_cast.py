"""Regression targets in the hundred thousands are cast to the dtype of the prediction: inf."""

import torch
from torch import nn


class Tabular(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.cat, self.mlp = (
            nn.Embedding(9, 8),
            nn.Sequential(nn.Linear(16, d), nn.SiLU(), nn.Linear(d, d), nn.SiLU()),
        )
        self.price = nn.Linear(d, 1)

    def forward(self, num, cat):
        return self.price(self.mlp(torch.cat([num, self.cat(cat)], -1))).squeeze(-1)


def model():
    torch.manual_seed(0)
    return Tabular()


def batch():
    torch.manual_seed(1)
    return {"num": torch.randn(64, 8), "cat": torch.randint(0, 9, (64,)), "price": torch.rand(64) * 2e5 + 2e4}


def loss(m, b):
    out = m(b["num"], b["cat"])
    y = b["price"].to(out.dtype)
    return nn.functional.l1_loss(out, y / 1e5)


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": [""],
    "op": "_to_copy,to",
    "fp32_fix": [],
    "scaler": "none",
    "source": "discuss.pytorch.org: nan loss with amp for large regression targets",
}
