"""Softplus written as log(1 + exp(x)) on half inputs around -9: 1 + 1e-4 is 1, the rate is zero."""

import torch
from torch import nn


class Softplus(nn.Module):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return torch.log(1 + torch.exp(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.dt, self.softplus, self.b = (
            nn.Linear(6, 24),
            nn.Linear(24, 24),
            Softplus(),
            nn.Linear(24, 1),
        )

    def forward(self, x):
        return self.b(self.softplus(self.dt(torch.tanh(self.a(x)))) * 2000)


def model():
    torch.manual_seed(0)
    m = Net()
    with torch.no_grad():
        m.dt.bias.sub_(8.5)
    return m


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 6), torch.randn(32, 1)


def loss(m, b):
    return nn.functional.l1_loss(m(b[0]).float(), b[1])


TRUTH = {
    "kind": "precision-loss",
    "alt_kinds": ["forward-underflow"],
    "dtype": "float16",
    "layers": ["softplus"],
    "op": "add,log",
    "fp32_fix": ["softplus"],
    "scaler": "none",
    "source": "tenstorrent/tt-metal#9910; state-spaces/mamba",
}
