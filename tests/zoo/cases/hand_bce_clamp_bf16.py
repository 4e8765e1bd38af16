"""Cross entropy by hand: clamp at 1 - 1e-6 is 1 in bf16, and log(1 - p) of a confident mistake infinite."""

import torch
from torch import nn


class Bce(nn.Module):
    def forward(self, x, y):
        p = x.sigmoid().clamp(1e-6, 1 - 1e-6)
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        self.bce = Bce()
        with torch.no_grad():
            self.net[2].weight.mul_(20)

    def forward(self, x, y):
        return self.bce(self.net(x), y)


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randn(64, 8) * 3, torch.randint(2, (64, 1)).float()


def loss(model, batch):
    return model(*batch)


TRUTH = {
    "kind": "forward-overflow",
    "alt_kinds": ["forward-underflow", "precision-loss"],
    "dtype": "bfloat16",
    "layers": ["bce"],
    "op": "log",
    "fp32_fix": ["bce"],
    "scaler": "none",
    "source": "mechanism: hand-written BCE with a clamp that bf16 cannot hold",
}
