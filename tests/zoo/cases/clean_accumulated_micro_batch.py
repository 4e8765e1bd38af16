"""A micro-batch of gradient accumulation: the loss divided by 64, whose gradients a usual scale keeps."""

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 6)
    )


def batch():
    torch.manual_seed(1)
    return torch.randn(8, 12), torch.randint(6, (8,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1]) / 64


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: gradient accumulation",
}
