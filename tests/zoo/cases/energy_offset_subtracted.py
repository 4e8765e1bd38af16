"""A head predicts a total of some thousands in half and the offset is subtracted afterwards: steps of
2 remain.
"""

import torch
from torch import nn


class EnergyHead(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.readout = nn.Linear(d, 1)
        with torch.no_grad():
            self.readout.bias.fill_(3000.0)

    def forward(self, h):
        return self.readout(h)


class Molecule(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.energy = nn.Sequential(nn.Linear(10, 32), nn.SiLU()), EnergyHead(32)

    def forward(self, x):
        return self.energy(self.body(x)).float() - 3000.0


def model():
    torch.manual_seed(0)
    return Molecule()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 10), 0.5 * torch.randn(32, 1)


def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "float16",
    "layers": ["energy.readout", "energy", ""],
    "op": "addmm,linear,sub",
    "fp32_fix": ["energy.readout"],
    "scaler": "none",
    "source": "mechanism: catastrophic cancellation of an offset (total energies, coordinates far "
    "from the origin)",
}
