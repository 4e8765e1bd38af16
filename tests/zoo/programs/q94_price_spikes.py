"""Hourly electricity prices with scarcity spikes, from demand, wind and reserves; fp16 with a scaler of our own."""

import torch
from torch import nn

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, BATCH, STEPS = 12, 48, 1500


class LossScaler:
    """Doubles the scale after a run of good steps and halves it when a gradient overflows."""

    def __init__(self, scale=2.0**16, window=500, floor=2.0**8, ceiling=2.0**18):
        self.scale, self.window, self.floor, self.ceiling = scale, window, floor, ceiling
        self.good, self.skipped = 0, 0

    def step(self, loss, optimizer):
        params = [p for group in optimizer.param_groups for p in group["params"]]
        optimizer.zero_grad()
        (loss * self.scale).backward()
        finite = all(bool(torch.isfinite(p.grad).all()) for p in params)
        if not finite:
            self.scale, self.good = max(self.scale / 2, self.floor), 0
            self.skipped += 1
            return
        for p in params:
            p.grad.div_(self.scale)
        nn.utils.clip_grad_norm_(params, 500.0)
        optimizer.step()
        self.good += 1
        if self.good % self.window == 0:
            self.scale = min(self.scale * 2, self.ceiling)


def market(n):
    """Return standardised features of n hours and the price in EUR/MWh."""
    x = torch.randn(n, FEATURES)
    demand, wind, outage = x[:, 0], x[:, 1], x[:, 2].abs()
    season = (x[:, 3] + 0.5 * x[:, 4]).sin()
    tight = demand - 0.6 * wind + 0.5 * outage + 0.4 * season
    merit = 55 + 14 * tight + 5 * tight * x[:, 5].tanh() + 3 * x[:, 6]
    scarce = 240 * nn.functional.softplus(6 * (tight - 2.9)) / 6 * (1 + 0.3 * x[:, 7].tanh())
    return x.to(device), (merit + scarce + 3 * torch.randn(n)).to(device)


class PriceNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEATURES, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )
        self.level, self.spread = nn.Parameter(torch.tensor(55.0)), 20.0

    def forward(self, x):
        return self.level + self.spread * self.net(x).squeeze(1).float()


net = PriceNet().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS, 1e-4)
scaler = LossScaler()
average = 0.0
for step in range(STEPS):
    x, y = market(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        forecast = net(x)
    loss = nn.functional.mse_loss(forecast, y)
    scaler.step(loss, optimizer)
    schedule.step()
    average = 0.98 * average + 0.02 * loss.item()
    if step % 250 == 249:
        print(f"step {step + 1} loss {average:.1f} scale {scaler.scale:.0f} skipped {scaler.skipped}")

x, y = market(20000)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = (net(x) - y).abs()
high = y > 150
print(f"held-out error: all hours {error.mean():.2f}, {int(high.sum())} hours over 150 EUR/MWh {error[high].mean():.2f}")
print("METRIC", round(error[high].mean().item(), 3))
