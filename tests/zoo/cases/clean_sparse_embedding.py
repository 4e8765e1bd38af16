"""An embedding with sparse gradients."""

import torch
from torch import nn


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(200, 16, sparse=True), nn.Linear(16, 4)

    def forward(self, ids):
        return self.out(self.words(ids).mean(1))


def model():
    torch.manual_seed(0)
    return Bag()


def batch():
    torch.manual_seed(1)
    return torch.randint(200, (16, 7)), torch.randint(4, (16,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: sparse gradients",
}
