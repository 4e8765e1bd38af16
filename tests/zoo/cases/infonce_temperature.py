"""InfoNCE at temperature 0.005: dividing the similarities by it multiplies their gradient by 200."""

import torch
from torch import nn


class Projector(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 24))

    def forward(self, x):
        return nn.functional.normalize(self.trunk(x), dim=-1)


class NtXent(nn.Module):
    def forward(self, a, b, temperature=0.005):
        return nn.functional.cross_entropy((a @ b.t()) / temperature, torch.arange(len(a)), reduction="sum")


class SimClr(nn.Module):
    def __init__(self):
        super().__init__()
        self.projector, self.criterion = Projector(), NtXent()

    def forward(self, a, b):
        return self.criterion(self.projector(a), self.projector(b))


def model():
    torch.manual_seed(0)
    return SimClr()


def batch():
    torch.manual_seed(1)
    x = torch.randn(12, 20)
    return x + torch.randn(12, 20), x + torch.randn(12, 20)


def loss(model, batch):
    return model(*batch)


TRUTH = {
    "kind": "backward-overflow",
    "dtype": "float16",
    "layers": ["criterion"],
    "op": "div,mul,_to_copy,mm,bmm,matmul",
    "fp32_fix": [],
    "scaler": "needs-scale<=2**8",
    "source": "openai/CLIP#46 (temperature in half); mechanism: 1 / temperature in the backward",
}
