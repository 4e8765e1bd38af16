"""Outliers are clipped at a quantile, and torch.quantile takes float32 or float64 only."""

import torch
from torch import nn


class Winsorize(nn.Module):
    def forward(self, x):
        top = torch.quantile(x.detach(), 0.95)
        return x.clamp(-top, top)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), Winsorize(), nn.ReLU(), nn.Linear(32, 3))


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 8), torch.randint(3, (16,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "dtype-error",
    "dtype": "bfloat16",
    "layers": ["1"],
    "op": "quantile",
    "fp32_fix": ["1"],
    "scaler": "none",
    "source": "huggingface/trl#3666; pytorch/pytorch#91156",
}
