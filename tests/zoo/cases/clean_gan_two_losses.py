"""Generator and discriminator in one step: two losses, one of them through a detached sample."""

import torch
from torch import nn


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 8))
        self.discriminator = nn.Sequential(nn.Linear(8, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))

    def forward(self, noise, real):
        fake = self.generator(noise)
        return self.discriminator(fake), self.discriminator(fake.detach()), self.discriminator(real)


def model():
    torch.manual_seed(0)
    return Gan()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 4), torch.randn(32, 8)


def loss(model, batch):
    fooled, fake, real = model(*batch)
    softplus = nn.functional.softplus
    return softplus(-fooled).mean() + softplus(fake).mean() + softplus(-real).mean()


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: two losses",
}
