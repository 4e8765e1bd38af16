import math

import torch
from torch import nn


class Leaky(nn.Module):
    """A gated memory with the chrono initialisation (Tallec & Ollivier): forget biases of log(U(1, T))."""

    def __init__(self, d, h, horizon=20000):
        super().__init__()
        self.cand = nn.Linear(d, h)
        self.forget = nn.Linear(d, h)
        with torch.no_grad():
            self.forget.weight.mul_(0.1)
            self.forget.bias.copy_(torch.log(torch.empty(h).uniform_(0.5 * horizon, horizon - 1)))

    def forward(self, x):
        s = x.new_zeros(x.shape[1], self.forget.out_features)
        for t in x:
            f = torch.sigmoid(self.forget(t))
            s = f * s + 0.05 * torch.tanh(self.cand(t))
        return s


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = Leaky(8, 32)
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.memory(x))


model = Reader


def batch():
    x = torch.randn(40, 16, 8)
    return x, (x[:20].sum((0, 2)) > 0).long()


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
