"""A residual in SI units: the loss is about 1e-11, so that even at 2**16 its gradients flush to zero."""

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))


def batch():
    torch.manual_seed(1)
    return torch.rand(256, 2), torch.randn(256, 1)


def loss(model, batch):
    return 2e-10 * (model(batch[0]).float() - batch[1]).square().mean()


TRUTH = {
    "kind": "grad-underflow",
    "dtype": "float16",
    "layers": ["", "0", "1", "2", "3", "4"],
    "op": "",
    "fp32_fix": [],
    "scaler": "needs-scale>=2**20",
    "source": "mechanism: physical units in a loss (permittivity 8.85e-12)",
}
