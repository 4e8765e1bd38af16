"""Volume rendering along a ray: transmittance multiplied step by step in half, its sum of weights divides."""

import torch
from torch import nn


class Composite(nn.Module):
    def forward(self, alpha, depth):
        light, weights = torch.ones_like(alpha[:, 0]) * 1e-4, []
        for step in range(alpha.shape[1]):
            weights.append(light * alpha[:, step])
            light = light * (1 - alpha[:, step])
        weights = torch.stack(weights, 1)
        late = weights[:, 6:]
        return (late * depth[:, 6:].to(late.dtype)).sum(1) / (late.sum(1) + 1e-10)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.density, self.composite = (
            nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1)),
            Composite(),
        )

    def forward(self, points):
        alpha = torch.sigmoid(self.density(points).squeeze(-1) + 1.5)
        return self.composite(alpha, points[..., 2])


def model():
    torch.manual_seed(0)
    return Field()


def batch():
    torch.manual_seed(1)
    return torch.rand(64, 16, 3), torch.rand(64)


def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]).float(), batch[1])


TRUTH = {
    "kind": "forward-underflow",
    "alt_kinds": ["forward-overflow", "precision-loss"],
    "dtype": "float16",
    "layers": ["composite"],
    "op": "mul,div,add",
    "fp32_fix": ["composite"],
    "scaler": "none",
    "source": "LinShan-Bin/OccNeRF#5 (rendering weights in half)",
}
