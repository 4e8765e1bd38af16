"""PINN for a diffusive energy-balance climate model between equator and pole.

Solves  D T'' - (A + B T) + S(y) (1 - albedo) = 0  for the zonal mean temperature, y in metres.
"""

import math

import torch
from torch import nn

LENGTH = 1.0e7  # m, from equator to pole
DIFFUSIVITY = 0.6 * LENGTH**2  # W / K
OLR_A, OLR_B = 203.3, 2.09  # W / m2, W / m2 / K
SOLAR = 340.0


def absorbed(y):
    """Absorbed sunlight in W / m2."""
    latitude = y / LENGTH * math.pi / 2
    p2 = 0.5 * (3 * torch.sin(latitude).square() - 1)
    return SOLAR * (1 - 0.48 * p2) * (0.70 - 0.08 * p2)


class TemperatureNet(nn.Module):
    def __init__(self, width=48, depth=3):
        super().__init__()
        layers = [nn.Linear(1, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, y):
        return 20.0 * self.layers(y / LENGTH)


def gradient(values, points):
    (grad,) = torch.autograd.grad(values, points, torch.ones_like(values), create_graph=True)
    return grad


def pde_residual(model, y):
    y = y.clone().requires_grad_()
    temperature = model(y)
    slope = gradient(temperature, y)
    curvature = gradient(slope, y)
    return DIFFUSIVITY * curvature - (OLR_A + OLR_B * temperature) + absorbed(y)


def boundary_flux(model, ends):
    """Dimensionless dT/dy at the equator and the pole, where no heat passes."""
    ends = ends.clone().requires_grad_()
    return gradient(model(ends), ends) * LENGTH / 20.0


def main(steps=80):
    torch.manual_seed(7)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = TemperatureNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cuda")
    ends = torch.tensor([[0.0], [LENGTH]], device=device)

    for step in range(steps):
        y = LENGTH * torch.rand(128, 1, device=device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            residual = pde_residual(model, y)
            flux = boundary_flux(model, ends)
            loss = (residual / 100).square().mean() + 0.1 * flux.square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 16 == 0 or step == steps - 1:
            print(f"{step:3d}  loss {loss.item():.5f}  rms residual {residual.float().square().mean().sqrt().item():.2f} W/m2")

    with torch.no_grad():
        profile = model(torch.linspace(0, LENGTH, 5, device=device)[:, None]).squeeze(1)
    print("temperature", " ".join(f"{t:.2f}" for t in profile.tolist()))
    return model


if __name__ == "__main__":
    main()
