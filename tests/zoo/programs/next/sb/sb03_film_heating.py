"""Temperature profile in an electrically heated thin film by a physics-informed network."""
import math

import torch
from torch import nn

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"
THICKNESS = 2e-3      # m
CONDUCTIVITY = 0.5    # W / (m K)
HEATING = 1e6         # W / m^3, mean of the volume heating
STEPS, POINTS = 500, 256


def source(x):
    return HEATING * (1 + torch.sin(3 * math.pi * x / THICKNESS))


def exact(x):
    z = x / THICKNESS
    lift = HEATING * THICKNESS ** 2 / CONDUCTIVITY
    return lift * (z * (1 - z) / 2 + torch.sin(3 * math.pi * z) / (3 * math.pi) ** 2)


class Profile(nn.Module):
    """Temperature above the heat sinks (K) as a function of depth (m)."""

    def __init__(self, hidden=64):
        super().__init__()
        self.first = nn.Linear(1, hidden)
        nn.init.uniform_(self.first.weight, -6 / THICKNESS, 6 / THICKNESS)
        nn.init.uniform_(self.first.bias, -4.0, 4.0)
        self.rest = nn.Sequential(nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.rest(self.first(x))


def heat_residual(model, x):
    """Heat balance k T'' + q = 0, relative to the mean heating."""
    x = x.requires_grad_()
    with torch.autocast("cuda", dtype=torch.float16):
        temperature = model(x)
    (flux,) = torch.autograd.grad(temperature.float().sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(flux.sum(), x, create_graph=True)
    return (CONDUCTIVITY * curvature + source(x.detach())) / HEATING


model = Profile().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
edges = torch.tensor([[0.0], [THICKNESS]], device=device)

for step in range(STEPS):
    x = THICKNESS * torch.rand(POINTS, 1, device=device)
    balance = heat_residual(model, x).pow(2).mean()
    with torch.autocast("cuda", dtype=torch.float16):
        at_edges = model(edges).float().pow(2).mean()
    loss = 0.05 * balance + at_edges
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 100 == 0:
        print(f"step {step} balance {balance.item():.4f} edges {at_edges.item():.5f}")

with torch.no_grad():
    depth = torch.linspace(0, THICKNESS, 501, device=device)[:, None]
    with torch.autocast("cuda", dtype=torch.float16):
        found = model(depth).float()
    error = (found - exact(depth)).norm() / exact(depth).norm()
print(f"metric {error.item():.4f}")
