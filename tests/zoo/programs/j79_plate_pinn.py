# Displacement field of a loaded plate from digital image correlation (DIC) points and a few strain gauges.
# The network gives the displacement; strains come from automatic differentiation, everything in SI units.
import math

import torch
from torch import nn

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"

LENGTH = 0.05  # m, edge of the specimen
U_REF = (2.0e-7, 1.2e-7)  # m, expected size of the displacements
STEPS = 220


def true_displacement(xy):
    """Reference solution (from the FE model), xy in m."""
    s, t = xy[:, 0] / LENGTH, xy[:, 1] / LENGTH
    ux = U_REF[0] * (s + 0.4 * torch.sin(2 * math.pi * s) * torch.cos(math.pi * t))
    uy = U_REF[1] * (-t + 0.5 * torch.sin(math.pi * s) * torch.sin(2 * math.pi * t))
    return torch.stack([ux, uy], -1)


def strain_of(displacement, xy):
    """Small strain (xx, yy, xy) of a displacement that was computed from xy."""
    gx = torch.autograd.grad(displacement[:, 0].sum(), xy, create_graph=True)[0]
    gy = torch.autograd.grad(displacement[:, 1].sum(), xy, create_graph=True)[0]
    return torch.stack([gx[:, 0], gy[:, 1], 0.5 * (gx[:, 1] + gy[:, 0])], -1)


class PlateNet(nn.Module):
    def __init__(self, width=64, depth=3):
        super().__init__()
        layers, size = [], 2
        for _ in range(depth):
            layers += [nn.Linear(size, width), nn.Tanh()]
            size = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, 2)
        self.register_buffer("u_ref", torch.tensor(U_REF))

    def forward(self, xy):
        hidden = self.body(2 * xy / LENGTH - 1)
        return self.head(hidden) * self.u_ref


def points(n):
    return torch.rand(n, 2, device=device) * LENGTH


def reference_strain(xy):
    xy = xy.detach().requires_grad_(True)
    return strain_of(true_displacement(xy), xy).detach()


model = PlateNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda")

strain_ref = U_REF[0] / LENGTH
# a handful of DIC points fixes the rigid motion, the gauges carry the gradients
dic_xy = points(12)
dic_u = true_displacement(dic_xy)
gauge_xy = points(400)
gauge_strain = reference_strain(gauge_xy)
test_xy = points(500)
test_strain = reference_strain(test_xy)


def predict_strain(xy):
    xy = xy.detach().requires_grad_(True)
    return strain_of(model(xy), xy)


for step in range(STEPS):
    pick = torch.randint(0, len(gauge_xy), (200,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        u_loss = (((model(dic_xy) - dic_u) / model.u_ref) ** 2).mean()
        gauge_loss = (((predict_strain(gauge_xy[pick]) - gauge_strain[pick]) / strain_ref) ** 2).mean()
        loss = u_loss + gauge_loss
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 40 == 0 or step == STEPS - 1:
        print(f"step {step:4d}  displacement {u_loss.item():.4f}  strain {gauge_loss.item():.4f}")

with torch.autocast("cuda", dtype=torch.float16):
    error = (predict_strain(test_xy) - test_strain).norm() / test_strain.norm()
print(f"final metric: {error.item():.4f}")
