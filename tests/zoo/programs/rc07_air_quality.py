"""Nitrogen dioxide in a region: a branch for traffic and weather, and a spatial branch of Gaussian bumps."""

import torch
import torch.nn.functional as F
from torch import nn

ANCHORS, SIDE, COVARIATES = 100, 40.0, 8  # SIDE in km
ORIGIN = torch.tensor([310.0, 240.0])  # south-west corner in the national grid, km
STEPS, BATCH = 260, 192

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"

sources = torch.rand(14, 2) * SIDE + ORIGIN
strength = torch.randn(14) * 1.5
effect = torch.randn(COVARIATES) / COVARIATES**0.5


def samples(n):
    """Positions (national grid, km), covariates and the standardised concentration."""
    place = torch.rand(n, 2) * SIDE + ORIGIN
    other = torch.randn(n, COVARIATES)
    plume = (strength * torch.exp(-torch.cdist(place, sources).square() / (2 * 5.0**2))).sum(1)
    target = plume + torch.tanh(other @ effect) + 0.05 * torch.randn(n)
    return place.to(device), other.to(device), target.to(device)


class Spatial(nn.Module):
    """Radial basis functions around fixed anchors, with learned widths and heights."""

    def __init__(self):
        super().__init__()
        axis = (torch.arange(10) + 0.5) * SIDE / 10
        grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2) + ORIGIN
        self.register_buffer("anchors", grid)
        self.log_width = nn.Parameter(torch.full((ANCHORS,), 4.0).log())
        self.height = nn.Linear(ANCHORS, 1)

    def forward(self, place):
        # |p - a|^2 = |p|^2 + |a|^2 - 2 p.a, without the (batch, anchors, 2) tensor of differences
        cross = place @ self.anchors.T
        squared = place.square().sum(1)[:, None] + self.anchors.square().sum(1)[None, :] - 2 * cross
        bumps = torch.exp(-squared.clamp(min=0) / (2 * torch.exp(self.log_width) ** 2))
        return self.height(bumps)


class Region(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(COVARIATES, 48), nn.SiLU(), nn.Linear(48, 1))
        self.spatial = Spatial()

    def forward(self, place, other):
        return (self.local(other).float() + self.spatial(place).float()).squeeze(1)


model = Region().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
for step in range(STEPS):
    place, other, target = samples(BATCH)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(place, other), target)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 65 == 0:
        print(f"step {step} loss {loss.item():.4f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    place, other, target = samples(5000)
    rmse = F.mse_loss(model(place, other), target).sqrt()
print(f"metric {rmse.item():.4f}")
