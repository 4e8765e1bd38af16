"""Geodesic rotation loss: the cosine of a small angle rounds to 1 in bf16, where acos has an infinite
slope.
"""

import torch
from torch import nn


class Geodesic(nn.Module):
    def forward(self, predicted, target):
        cosine = torch.einsum("bi,bi->b", nn.functional.normalize(predicted, dim=-1), target)
        return torch.acos(0.9999 * cosine).mean()  # the factor is meant to keep it below 1


class Pose(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
        self.geodesic = Geodesic()

    def forward(self, x, rough):
        return rough + 0.05 * self.net(x).float()


def model():
    torch.manual_seed(0)
    return Pose()


def batch():
    torch.manual_seed(1)
    target = nn.functional.normalize(torch.randn(64, 4), dim=-1)
    return torch.randn(64, 16), target + 0.02 * torch.randn(64, 4), target


def loss(model, batch):
    return model.geodesic(model(batch[0], batch[1]), batch[2])


TRUTH = {
    "kind": "backward-overflow",
    "alt_kinds": ["precision-loss"],
    "dtype": "bfloat16",
    "layers": ["geodesic"],
    "op": "acos,rsqrt,mul,_to_copy,bmm",  # the einsum alone in FP32 heals, the product alone does not
    "fp32_fix": ["geodesic"],
    "scaler": "none",
    "source": "geoopt/geoopt#79; eigenvivek/nanodrr#31",
}
