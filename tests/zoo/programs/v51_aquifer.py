"""Groundwater flow, physics-informed: heads in a layered aquifer between a river and a well field."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(61)

RECHARGE, RIVER, WELLS = 0.8, 1.0, 0.2


def conductivity(x):
    return 1.0 + 0.5 * torch.sin(6.0 * x)


class Head(nn.Module):
    """Heads that meet both boundary values by construction; the slope is carried along by hand."""

    def __init__(self, width=64):
        super().__init__()
        self.one, self.two = nn.Linear(1, width), nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        inner = self.out(torch.tanh(self.two(torch.tanh(self.one(2 * x - 1))))).float()
        return RIVER + (WELLS - RIVER) * x + x * (1 - x) * inner


class Scale:
    """A loss scale of our own: halve it on an overflow and leave the step out, double it after 100 good ones."""

    def __init__(self, value=2.0**20):
        self.value, self.good, self.left_out = value, 0, 0

    def step(self, optimizer, parameters):
        parameters = [p for p in parameters if p.grad is not None]
        if not all(torch.isfinite(p.grad).all() for p in parameters):
            self.value, self.good, self.left_out = self.value / 2, 0, self.left_out + 1
            return
        for p in parameters:
            p.grad.div_(self.value)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        self.good += 1
        if self.good % 100 == 0:
            self.value = min(2 * self.value, 2.0**20)


def energy(model, x):
    """Energy whose minimum solves (K h')' = -R, by differences over cells in FP32."""
    head = model(x[:, None]).squeeze(1)
    width = x[1:] - x[:-1]
    slope = (head[1:] - head[:-1]) / width
    middle, level = (x[1:] + x[:-1]) / 2, (head[1:] + head[:-1]) / 2
    return (width * (0.5 * conductivity(middle) * slope.square() - RECHARGE * level)).sum()


def exact(points=4001):
    """Heads by quadrature of the flux."""
    x = torch.linspace(0, 1, points, dtype=torch.float64)
    k = conductivity(x)
    step = x[1] - x[0]

    def integral(y):
        return torch.cat([torch.zeros(1, dtype=torch.float64), ((y[1:] + y[:-1]) / 2 * step).cumsum(0)])

    drawn, open_ = integral(-RECHARGE * x / k), integral(1 / k)
    return x.float().to(device), (RIVER + drawn + (WELLS - RIVER - drawn[-1]) / open_[-1] * open_).float().to(device)


model = Head().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
scale = Scale()

for step in range(500):
    x = torch.linspace(0, 1, 65, device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = energy(model, x)
    optimizer.zero_grad(set_to_none=True)
    (scale.value * loss).backward()
    scale.step(optimizer, list(model.parameters()))
    schedule.step()
    if step % 100 == 0:
        print(f"step {step} energy {loss.item():.5f} scale {scale.value:.0f} left out {scale.left_out}")

x, head = exact()
with torch.no_grad():
    found = model(x[:, None]).squeeze(1)
print("METRIC", 1000 * (found - head).square().mean().sqrt().item())
