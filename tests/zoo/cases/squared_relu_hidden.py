"""Squared ReLU (Primer): hidden activations of a few hundred are fine, their squares leave float16."""

import torch
from torch import nn


class SquaredReLU(nn.Module):
    def forward(self, x):
        positive = torch.relu(x)
        return positive * positive


class Block(nn.Module):
    def __init__(self, d, gain):
        super().__init__()
        self.norm, self.up, self.act, self.down = (
            nn.LayerNorm(d),
            nn.Linear(d, 4 * d),
            SquaredReLU(),
            nn.Linear(4 * d, d),
        )
        with torch.no_grad():
            self.up.weight.mul_(gain)
            self.down.weight.mul_(1.0 / gain**2)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 32), Block(32, 1.0), Block(32, 300.0), nn.LayerNorm(32), nn.Linear(32, 5)
    )


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 12), torch.randint(5, (16,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["2.act"],
    "op": "mul",
    "fp32_fix": ["2.act", "2.down"],
    "scaler": "none",
    "source": "mechanism: squared ReLU (Primer, Nemotron) on outlier activations",
}
