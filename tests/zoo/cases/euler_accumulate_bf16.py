"""A state advanced by 400 small Euler steps in bf16: increments below half an ulp are lost."""

import torch
from torch import nn


class Euler(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.field = nn.Sequential(nn.Linear(d, 16), nn.Tanh(), nn.Linear(16, d))

    def forward(self, z):
        for _ in range(120):
            z = z + self.field(z) * (1 / 800)
        return z


class ODE(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.inp, self.solver, self.out = nn.Linear(5, d), Euler(d), nn.Linear(d, 2)

    def forward(self, x):
        z = self.inp(x)
        return self.out(self.solver(z) - z)


def model():
    torch.manual_seed(0)
    m = ODE()
    with torch.no_grad():
        m.inp.bias.add_(4)
        m.solver.field[2].bias.add_(1.5)
        m.out.bias.zero_()
    return m


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 5), torch.randn(16, 2)


def loss(m, b):
    return nn.functional.mse_loss(m(b[0]).float(), b[1])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "bfloat16",
    "layers": ["solver"],
    "op": "add",
    "fp32_fix": ["solver"],
    "scaler": "none",
    "source": "rtqichen/torchdiffeq#40; patrick-kidger/torchdiffeq half notes",
}
