"""Fit a neural field to the ground deformation above a gas store, measured by satellite (metres)."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

STEPS, POINTS = 200, 4096


def deformation(place):
    """Uplift in metres at (x, y, season), each in 0 to 1."""
    x, y, season = place.unbind(1)
    bowl = torch.exp(-((x - 0.4) ** 2 + (y - 0.55) ** 2) / 0.03) * torch.sin(2 * math.pi * season)
    second = 0.6 * torch.exp(-((x - 0.75) ** 2 + (y - 0.3) ** 2) / 0.015)
    tilt = 0.5 * (x - y) * (season - 0.5)
    return 0.004 * (bowl - second + tilt)


class Field(nn.Module):
    def __init__(self, bands=4, dim=64):
        super().__init__()
        self.register_buffer("bands", math.pi * 2.0 ** torch.arange(bands) / 2)
        self.net = nn.Sequential(nn.Linear(3 * 2 * bands, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU(),
                                 nn.Linear(dim, 1))
        nn.init.zeros_(self.net[-1].bias)
        with torch.no_grad():
            self.net[-1].weight.mul_(0.02)  # millimetres at the start

    def forward(self, place):
        phase = (place[:, :, None] * self.bands).flatten(1)
        return self.net(torch.cat([phase.sin(), phase.cos()], dim=1)).squeeze(1)


model = Field().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-12)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
# start low, the first steps were skipped otherwise
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**14, growth_interval=1000)

for step in range(STEPS):
    place = torch.rand(POINTS, 3, device=device)
    target = deformation(place) + 2e-4 * torch.randn(POINTS, device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(place), target)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 40 == 0:
        print(f"step {step} rmse {1000 * math.sqrt(loss.item()):.3f} mm")

model.eval()
place = torch.rand(8192, 3, device=device)
with torch.no_grad():
    error = model(place) - deformation(place)
print(f"metric {1000 * error.pow(2).mean().sqrt().item():.4f}")  # mm
