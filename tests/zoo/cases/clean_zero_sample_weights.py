"""Per-sample weights, most of them zero, and a mean over those that count."""

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))


def batch():
    torch.manual_seed(1)
    return torch.randn(64, 10), torch.randint(4, (64,)), (torch.rand(64) < 0.2).float()


def loss(model, batch):
    each = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return (each * batch[2]).sum() / (batch[2].sum() + 1e-8)


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: zero weights and eps in float32",
}
