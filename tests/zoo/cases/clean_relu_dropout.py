"""ReLU and dropout make most activations and many gradients exactly zero, as they should."""

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
    )
    with torch.no_grad():
        net[0].bias.sub_(0.3)
    return net


def batch():
    torch.manual_seed(1)
    return torch.randn(64, 12), torch.randint(3, (64,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: zeros of ReLU and dropout",
}
