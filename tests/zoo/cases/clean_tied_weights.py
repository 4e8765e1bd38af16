"""A language model whose output layer is its embedding."""

import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(n, d), nn.Linear(d, d), nn.Linear(d, n, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.embed(ids))))


def model():
    torch.manual_seed(0)
    return Tied(40, 24)


def batch():
    torch.manual_seed(1)
    return torch.randint(40, (4, 8)), torch.randint(40, (32,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: tied weights",
}
