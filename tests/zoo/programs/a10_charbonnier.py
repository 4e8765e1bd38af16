import torch
from torch import nn


class SR(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.tail = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x):
        f = self.body(x)
        return torch.relu(self.tail(f)), f


def model():
    return SR()


def batch():
    x = torch.rand(4, 3, 24, 24)
    target = x.clone()
    target[:, :, :8] = 0
    return x, target


def charbonnier(a, b):
    d = a - b
    return torch.sqrt(d * d + 1e-9).mean()


def loss(model, batch):
    x, y = batch
    out, _ = model(x)
    return charbonnier(out, y.to(out.dtype))
