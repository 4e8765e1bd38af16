import torch
from torch import nn


class Forecast(nn.Module):
    """Raw time stamps (hours since 2021) beside two readings; the batch norm brings them to scale."""

    def __init__(self):
        super().__init__()
        self.time = nn.Linear(1, 24)
        self.read = nn.Linear(2, 24)
        self.norm = nn.BatchNorm1d(48)
        self.head = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, t, r):
        return self.head(self.norm(torch.cat([self.time(t), self.read(r)], 1)))


def model():
    return Forecast()


def batch():
    t = 43000 + 24 * torch.rand(64, 1)
    r = torch.randn(64, 2)
    return t, r, torch.sin(t / 24 * 6.2832) + r.sum(1, keepdim=True)


def loss(model, batch):
    t, r, y = batch
    return nn.functional.mse_loss(model(t, r), y)
