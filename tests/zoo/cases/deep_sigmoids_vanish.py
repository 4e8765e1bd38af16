"""A deep chain of sigmoids: every layer divides the gradient by at least four, the first ones get
nothing in half.
"""

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    layers = [part for _ in range(8) for part in (nn.Linear(24, 24), nn.Sigmoid())]
    return nn.Sequential(*layers, nn.Linear(24, 4))


def batch():
    torch.manual_seed(1)
    return torch.randn(64, 24), torch.randint(4, (64,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "grad-underflow",
    "dtype": "float16",
    "layers": ["", "0", "1", "2", "3", "4", "5", "6"],
    "op": "",
    "fp32_fix": [],
    "scaler": "needs-scale>=2**7",
    "source": "mechanism: vanishing gradients; NVIDIA/tacotron2#112 (a scale that has to be large)",
}
