import torch
import torch.nn as nn
import torch.utils.checkpoint as cp


class Squash(nn.Module):
    """x / |x| with a learned temperature, recomputed in the backward."""

    def __init__(self, d):
        super().__init__()
        self.lin = nn.Linear(d, d)
        self.temp = nn.Linear(d, 1)
        nn.init.constant_(self.temp.bias, -7.0)

    def inner(self, x):
        t = torch.sigmoid(self.temp(x)) + 5e-4
        return torch.tanh(0.05 * self.lin(x) / t)

    def forward(self, x):
        return cp.checkpoint(self.inner, x, use_reentrant=False)


def model():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), Squash(40), nn.Linear(40, 3))


batch = (8 * torch.randn(24, 20), torch.randint(0, 3, (24,)))


def loss(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)
