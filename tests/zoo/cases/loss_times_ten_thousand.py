"""A loss multiplied by 1e4 "to make it readable": at scale 2**16 the first gradient is already beyond
float16.
"""

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 12), torch.randint(4, (16,))


def loss(model, batch):
    return 1e4 * nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "backward-overflow",
    "dtype": "float16",
    "layers": [""],
    "op": "",
    "fp32_fix": [],
    "scaler": "needs-scale<=2**6",
    "source": "pytorch/pytorch#111739 (the default scale overflows on a small example)",
}
