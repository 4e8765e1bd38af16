"""Positions beyond 2048, kept as integers until a float32 sinusoid turns them into features."""

import torch
from torch import nn


class Positions(nn.Module):
    def forward(self, x, start):
        place = (start + torch.arange(x.shape[1])).float()
        angle = place[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03])
        return torch.cat([angle.sin(), angle.cos()], -1).to(x.dtype)


class Longform(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.positions, self.out = nn.Linear(4, 8), Positions(), nn.Linear(8, 3)

    def forward(self, x, start):
        h = self.embed(x)
        return self.out(torch.tanh(h + self.positions(h, start)))


def model():
    torch.manual_seed(0)
    return Longform()


def batch():
    torch.manual_seed(1)
    return torch.randn(4, 64, 4), torch.tensor(8111), torch.randint(3, (256,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0], batch[1]).flatten(0, 1), batch[2])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: integer positions",
}
