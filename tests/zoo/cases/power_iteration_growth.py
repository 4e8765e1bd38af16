"""A spectral penalty iterates v <- W'Wv and normalises only at the end: the vector grows by sigma^2
each round.
"""

import torch
from torch import nn


class SpectralNorm(nn.Module):
    def forward(self, weight, rounds=4):
        v = torch.ones(weight.shape[1], 1)
        for _ in range(rounds):
            v = weight.t() @ (weight @ v)
        return (weight @ (v / v.float().norm())).float().norm()


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2))
        self.score, self.sigma = nn.Linear(32, 1), SpectralNorm()

    def forward(self, x):
        return self.score(self.net(x))


def model():
    torch.manual_seed(0)
    net = Critic()
    with torch.no_grad():
        net.net[2].weight.mul_(6)
    return net


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 12)


def loss(model, batch):
    penalty = (model.sigma(model.net[2].weight) - 1).pow(2)
    return nn.functional.softplus(model(batch)).mean() + 0.01 * penalty


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["sigma"],
    "op": "mm,mv,matmul",
    "fp32_fix": ["sigma"],
    "scaler": "none",
    "source": "mechanism: power iteration without normalisation in every round",
}
