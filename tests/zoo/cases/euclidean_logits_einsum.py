"""Prototypical network: squared norms of wide embeddings by einsum, which autocast runs in half."""

import torch
from torch import nn


class Distances(nn.Module):
    def forward(self, x, prototypes):
        x2 = torch.einsum("nd,nd->n", x, x)
        p2 = torch.einsum("kd,kd->k", prototypes, prototypes)
        return -(x2[:, None] + p2 - 2 * x @ prototypes.T) * 1e-5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 512))
        self.prototypes = nn.Parameter(torch.randn(5, 512) * 20)
        self.distances = Distances()
        with torch.no_grad():
            self.body[2].weight.mul_(40)

    def forward(self, x):
        return self.distances(self.body(x), self.prototypes)


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randn(20, 8), torch.randint(5, (20,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["distances"],
    "op": "bmm,mul,sum,einsum",
    "fp32_fix": ["distances"],
    "scaler": "none",
    "source": "mechanism: metric learning with squared Euclidean logits in half",
}
