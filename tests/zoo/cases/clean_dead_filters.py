"""Filters that are zero in front of a batch norm: a constant channel is normalised to nothing, harmlessly."""

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)),
    )
    with torch.no_grad():
        net[0].weight[:5] = 0.0
        net[3].weight[8:] = 0.0
    return net


def batch():
    torch.manual_seed(1)
    return torch.randn(8, 3, 12, 12), torch.randint(4, (8,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: pruned filters in front of batch norm",
}
