"""Logits of a hundred into cross entropy with label smoothing: softmax underflows where it should."""

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))
    with torch.no_grad():
        net[2].weight.mul_(120)
    return net


def batch():
    torch.manual_seed(1)
    return torch.randn(64, 16), torch.randint(10, (64,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: large logits into cross entropy",
}
