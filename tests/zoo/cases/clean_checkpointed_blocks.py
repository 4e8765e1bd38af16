"""Activation checkpointing: the forward of every block runs twice, the second time inside the backward."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Stack(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.stem, self.head = nn.Linear(6, d), nn.Linear(d, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.SiLU()) for _ in range(3)
        )

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def model():
    torch.manual_seed(0)
    return Stack(24)


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 6), torch.randint(3, (32,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: activation checkpointing",
}
