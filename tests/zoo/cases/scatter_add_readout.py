"""Sum readout of a graph network: scatter_add into zeros of the node dtype runs over 65504."""

import torch
from torch import nn


class SumPool(nn.Module):
    def forward(self, x, index, n):
        out = x.new_zeros(n, x.shape[1])
        return out.scatter_add(0, index[:, None].expand_as(x), x)


class GNN(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.node, self.pool = (
            nn.Sequential(nn.Linear(4, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU()),
            SumPool(),
        )
        self.norm, self.out = nn.BatchNorm1d(d), nn.Linear(d, 3)

    def forward(self, x, index, n):
        return self.out(self.norm(self.pool(self.node(x), index, n)))


def model():
    torch.manual_seed(0)
    return GNN()


def batch():
    torch.manual_seed(1)
    return torch.rand(9000, 4) * 400, torch.arange(9000) // 1500, torch.arange(6) % 3


def loss(m, b):
    return nn.functional.cross_entropy(m(b[0], b[1], 6), b[2])


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["pool"],
    "op": "scatter_add",
    "fp32_fix": ["pool"],
    "scaler": "none",
    "source": "rusty1s/pytorch_scatter#120; pyg-team/pytorch_geometric half sum readout",
}
