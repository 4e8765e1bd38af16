"""A focal loss from logits: probabilities of 1e-7 meet no logarithm of their own."""

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 20))
    with torch.no_grad():
        net[2].bias.fill_(-9.0)
    return net


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 10), (torch.rand(32, 20) < 0.05).float()


def loss(model, batch):
    logits = model(batch[0])
    plain = nn.functional.binary_cross_entropy_with_logits(logits, batch[1], reduction="none")
    p = logits.sigmoid()
    weight = (batch[1] * (1 - p) + (1 - batch[1]) * p) ** 2
    return (weight * plain).sum() / batch[1].sum()


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: focal loss from logits",
}
