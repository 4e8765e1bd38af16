"""Volume rendering, transmittance by cumprod (float32 under autocast): saturated rays have weights of zero."""

import torch
from torch import nn


class Render(nn.Module):
    def forward(self, sigma, rgb, dt):
        alpha = 1 - torch.exp(-nn.functional.relu(sigma.float()) * dt)
        t = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-6], 1), 1)[:, :-1]
        return ((alpha * t)[..., None] * rgb).sum(1)


class NeRF(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.mlp, self.sigma, self.rgb, self.render = (
            nn.Sequential(nn.Linear(3, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU()),
            nn.Linear(d, 1),
            nn.Linear(d, 3),
            Render(),
        )

    def forward(self, p, dt):
        h = self.mlp(p)
        return self.render(self.sigma(h)[..., 0] * 20, torch.sigmoid(self.rgb(h)), dt)


def model():
    torch.manual_seed(0)
    return NeRF()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 24, 3), torch.full((32, 24), 0.25), torch.rand(32, 3)


def loss(m, b):
    return nn.functional.mse_loss(m(b[0], b[1]).float(), b[2])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: NeRF in mixed precision",
}
