"""The T5 remedy: hidden states are clamped to just below the largest half before they are added."""

import torch
from torch import nn


class Feed(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return (x + self.down(torch.relu(self.up(self.norm(x))))).clamp(-64000, 64000)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 24), Feed(24), Feed(24), nn.LayerNorm(24), nn.Linear(24, 4))


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 8), torch.randint(4, (32,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: clamped hidden states",
}
