"""Force matching: forces are an inner, unscaled gradient of an energy in atomic units, too small for float16.

The inner backward runs under autocast, too, so the module that calls it has to leave autocast as well.
"""

import torch
from torch import nn


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        return 1e-6 * self.net(x)


class ForceField(nn.Module):
    def __init__(self):
        super().__init__()
        self.potential = Potential()

    def forward(self, positions):
        positions = positions.detach().requires_grad_()
        energy = self.potential(positions)
        (force,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
        return -force


class Molecule(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = ForceField()

    def forward(self, positions):
        return self.field(positions)


def model():
    torch.manual_seed(0)
    net = Molecule()
    with torch.no_grad():
        net.field.potential.net[2].weight.mul_(0.1)
    return net


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 9), 1e-7 * torch.randn(16, 9)


def loss(model, batch):
    return (1e5 * (model(batch[0]) - batch[1])).pow(2).mean()


TRUTH = {
    "kind": "grad-underflow",
    "alt_kinds": ["precision-loss"],
    "dtype": "float16",
    "layers": [
        "field",
        "field.potential",
        "field.potential.net.0",
        "field.potential.net.1",
        "field.potential.net.2",
    ],
    "op": "",
    "fp32_fix": ["field"],
    "scaler": "none",
    "source": "mechanism: NVIDIA/apex#654 is the same inner gradient in a penalty",
}
