"""Rotary angles up to 4000 radians, but computed in float32 with autocast off."""

import torch
from torch import nn


class Rotary(nn.Module):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            places = torch.arange(x.shape[1], dtype=torch.float32) + 4000
            angles = places[:, None] * 100.0 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
            cos, sin = angles.cos(), angles.sin()
            a, b = x.float().chunk(2, -1)
            return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.embed, self.q, self.k, self.rotary = (
            nn.Embedding(30, d),
            nn.Linear(d, d),
            nn.Linear(d, d),
            Rotary(),
        )
        self.head = nn.Linear(d, 30)

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k = self.rotary(self.q(x)), self.rotary(self.k(x))
        return self.head((q @ k.transpose(1, 2) / 4).softmax(-1) @ x)


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randint(30, (4, 12)), torch.randint(30, (48,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: positions in a float32 island",
}
