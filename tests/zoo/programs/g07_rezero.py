import torch
from torch import nn


class ReZero(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
        self.alpha = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + self.alpha * self.f(x)


class LoRA(nn.Module):
    def __init__(self, base, r=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, r, bias=False)
        self.b = nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def model():
    return nn.Sequential(nn.Linear(20, 32), ReZero(32), ReZero(32), LoRA(nn.Linear(32, 32)), nn.ReLU(), nn.Linear(32, 5))


def batch():
    return torch.randn(32, 20), torch.randint(0, 5, (32,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
