import math
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

torch.manual_seed(4)
device = "cuda" if torch.cuda.is_available() else "cpu"
STEP = 0.02


class Deflection(nn.Module):
    """Shape of a loaded beam on [0, 1], held at both ends."""

    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return x * (1 - x) * self.net(2 * x - 1)


def load(x):
    return -math.pi**2 * torch.sin(math.pi * x)


def evaluate(model, x):
    with torch.autocast("cuda", dtype=torch.float16):
        return model(x)


def residual(model, x, pool):
    """Second difference of the shape less the load; kept out of half precision."""
    with torch.autocast("cuda", enabled=False):
        left, mid, right = pool.map(lambda shift: evaluate(model, x + shift), (-STEP, 0.0, STEP))
        return (left - 2 * mid + right) / STEP**2 - load(x)


def train(model, steps=200, batch=64):
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    with ThreadPoolExecutor(max_workers=3) as pool:
        for step in range(steps):
            x = STEP + (1 - 2 * STEP) * torch.rand(batch, 1, device=device)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = residual(model, x, pool).square().mean()
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            schedule.step()
            if step % 50 == 0:
                print(f"step {step} residual {loss.item():.4f} scale {scaler.get_scale():.0f}")


model = Deflection().to(device)
train(model)
with torch.no_grad():
    x = torch.linspace(0, 1, 200, device=device)[:, None]
    error = (model(x) - torch.sin(math.pi * x)).square().mean().sqrt()
print("metric", round(error.item(), 5))
