"""A gated feed-forward whose products leave fp16, as those of pre-trained T5 do."""

import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, width, gain):
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), gain))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)


class Gated(nn.Module):
    def __init__(self, width, gain):
        super().__init__()
        self.norm = Norm(width, gain)
        self.gate, self.value = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(2 * width, width)

    def forward(self, x):
        hidden = self.norm(x)
        return x + self.out(nn.functional.gelu(self.gate(hidden)) * self.value(hidden))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.layers = nn.Sequential(Gated(16, 1.0), Gated(16, 1500.0))
        self.norm, self.head = Norm(16, 1.0), nn.Linear(16, 32)

    def forward(self, tokens):
        return self.head(self.norm(self.layers(self.embed(tokens))))


model = Encoder


def batch():
    tokens = torch.randint(32, (8, 12))
    return tokens, tokens.roll(-1, 1)


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())
