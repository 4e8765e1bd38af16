"""Positions made with the dtype of the activations: above 2048 float16 cannot count, so neighbours
collide.
"""

import torch
from torch import nn


class Positions(nn.Module):
    def forward(self, x, start):
        place = start.to(x.dtype) + torch.arange(x.shape[1]).to(x.dtype)
        angle = place[:, None] * torch.tensor([1.0, 0.7, 0.5, 0.3])
        return torch.cat([angle.sin(), angle.cos()], -1)


class Longform(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Linear(4, 8), Positions()
        self.mix, self.out = nn.Linear(8, 24), nn.Linear(24, 3)

    def forward(self, x, start):
        h = self.embed(x)
        return self.out(torch.tanh(self.mix(h + 3 * self.positions(h, start))))


def model():
    torch.manual_seed(0)
    return Longform()


def batch():
    torch.manual_seed(1)
    return torch.randn(4, 128, 4), torch.tensor(8111), torch.randint(3, (512,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0], batch[1]).flatten(0, 1), batch[2])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "float16",
    "layers": ["positions"],
    "op": "_to_copy,add,arange,mul,sin",
    "fp32_fix": ["positions"],
    "scaler": "none",
    "source": "speechbrain/speechbrain#1470; Nerogar/OneTrainer#1177",
}
