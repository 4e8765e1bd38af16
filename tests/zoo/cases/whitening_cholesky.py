"""Whitening by a Cholesky factor of the half covariance: linear algebra has no half kernels on any device."""

import torch
from torch import nn


class Whiten(nn.Module):
    def forward(self, x):
        centred = x - x.mean(0)
        covariance = centred.t() @ centred / len(x) + 0.1 * torch.eye(x.shape[1]).to(x.dtype)
        return torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), centred.t(), upper=False).t()


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), Whiten(), nn.Linear(6, 3))


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 8), torch.randint(3, (32,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "dtype-error",
    "dtype": "float16",
    "layers": ["1"],
    "op": "linalg_cholesky_ex,linalg_cholesky",
    "fp32_fix": ["1"],
    "scaler": "none",
    "source": "pytorch/pytorch#40427; NVIDIA/apex#779",
}
