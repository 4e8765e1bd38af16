"""Graph convolution with an unnormalised adjacency: a hub node adds up thousands of neighbours."""

import torch
from torch import nn


class GraphSum(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)

    def forward(self, x, adjacency):
        return self.norm(adjacency @ x)


class Gnn(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.embed, self.gather = nn.Linear(5, d), GraphSum(d)
        self.out = nn.Linear(d, 3)

    def forward(self, x, adjacency):
        return self.out(self.gather(torch.relu(self.embed(x)), adjacency))


def model():
    torch.manual_seed(0)
    return Gnn()


def batch():
    torch.manual_seed(1)
    adjacency = (torch.rand(1500, 1500) < 0.01).float()
    adjacency[7] = 1.0
    return 40 + 20 * torch.rand(1500, 5), adjacency, torch.randint(3, (1500,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0], batch[1]), batch[2])


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["gather"],
    "op": "mm,matmul",
    "fp32_fix": ["gather"],
    "scaler": "none",
    "source": "mechanism: sum over many elements inside a matmul, which accumulates in float32 and "
    "rounds once",
}
