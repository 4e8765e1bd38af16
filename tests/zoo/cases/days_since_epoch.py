"""Dates as days since 1970 into a linear layer: around 20000 float16 counts in steps of 16."""

import torch
from torch import nn


class Dated(nn.Module):
    def __init__(self):
        super().__init__()
        self.time_proj = nn.Linear(1, 16)
        self.items = nn.Linear(6, 16)
        self.head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
        with torch.no_grad():
            self.time_proj.weight.copy_(torch.linspace(0.05, 0.5, 16)[:, None])
            self.time_proj.bias.copy_(-20000.0 * self.time_proj.weight[:, 0])

    def forward(self, days, items):
        return self.head(torch.sin(self.time_proj(days)) + self.items(items))


def model():
    torch.manual_seed(0)
    return Dated()


def batch():
    torch.manual_seed(1)
    return torch.randint(19990, 20030, (64, 1)).float(), torch.randn(64, 6), torch.randn(64, 1)


def loss(model, batch):
    return 1e-3 * nn.functional.mse_loss(model(batch[0], batch[1]).float(), batch[2])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "float16",
    "layers": ["time_proj"],
    "op": "_to_copy,addmm,linear",
    "fp32_fix": ["time_proj"],
    "scaler": "none",
    "source": "mechanism: raw timestamps as features (forecasting models under AMP)",
}
