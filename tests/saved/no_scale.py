"""Two branches whose gradients lie too far apart for any loss scale."""

import torch
from torch import nn


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(8, 32)
        self.loud, self.faint = nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x):
        hidden = self.trunk(x).tanh()
        return 5e3 * self.loud(hidden) + 1e-9 * self.faint(hidden)


model = Branches


def batch():
    return torch.randn(64, 8), torch.randint(4, (64,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
