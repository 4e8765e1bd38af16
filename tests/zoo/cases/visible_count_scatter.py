"""Voxel means: the number of points is counted with index_add of half ones, which stops at 2048."""

import torch
from torch import nn


class VoxelMean(nn.Module):
    def forward(self, x, voxel, n):
        total = torch.zeros(n, x.shape[1]).scatter_add_(0, voxel[:, None].expand_as(x), x.float())
        count = x.new_zeros(n).index_add_(0, voxel, torch.ones_like(x[:, 0]))
        return total / count.clamp(min=1)[:, None]


class Voxels(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.point, self.voxel_mean, self.head = (
            nn.Sequential(nn.Linear(3, d), nn.ReLU(), nn.Linear(d, d)),
            VoxelMean(),
            nn.Linear(d, 4),
        )

    def forward(self, p, v):
        return self.head(self.voxel_mean(self.point(p), v, 4))


def model():
    torch.manual_seed(0)
    return Voxels()


def batch():
    torch.manual_seed(1)
    return torch.randn(16000, 3) + 1, torch.arange(16000) // 4000, torch.arange(4)


def loss(m, b):
    return nn.functional.cross_entropy(m(b[0], b[1]), b[2])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "float16",
    "layers": ["voxel_mean"],
    "op": "index_add",
    "fp32_fix": ["voxel_mean"],
    "scaler": "none",
    "source": "rusty1s/pytorch_scatter scatter_mean in half; open-mmlab/mmdetection3d DynamicScatter",
}
