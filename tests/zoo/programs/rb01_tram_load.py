"""Forecast the passenger load of trams from stop features and the minute of the week."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

WEEK = 7 * 1440
STEPS, BATCH = 250, 512


def make_data(n):
    minute = torch.randint(0, WEEK, (n,), device=device)
    stop = torch.randn(n, 8, device=device)  # density, transfers, weather ...
    hour = (minute % 1440).float() / 60
    rush = torch.exp(-((hour - 8.0) / 0.9) ** 2) + 0.8 * torch.exp(-((hour - 17.5) / 1.2) ** 2)
    weekend = (minute // 1440 >= 5).float()
    profile = rush * (1 - 0.7 * weekend) + 0.3 * weekend * torch.exp(-((hour - 14) / 2.5) ** 2)
    area = 0.6 * torch.tanh(stop[:, 0]) + 0.4 * stop[:, 1] * torch.sigmoid(stop[:, 2])
    load = 2.0 * profile + area + 0.05 * torch.randn(n, device=device)
    return stop, minute, load


class TimeBranch(nn.Module):
    """Daily and weekly harmonics of the minute of the week."""

    def __init__(self, daily=12, weekly=7, dim=32):
        super().__init__()
        periods = torch.cat([1440 / torch.arange(1, daily + 1), WEEK / torch.arange(1, weekly + 1)])
        self.register_buffer("freq", 2 * math.pi / periods)
        self.proj = nn.Sequential(nn.Linear(2 * (daily + weekly), dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, minute, dtype):
        phase = minute.to(dtype)[:, None] * self.freq.to(dtype)
        return self.proj(torch.cat([phase.sin(), phase.cos()], dim=1))


class LoadModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.stop = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, dim))
        self.time = TimeBranch(dim=dim)
        self.head = nn.Sequential(nn.GELU(), nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, stop, minute):
        h = self.stop(stop)
        h = h + self.time(minute, h.dtype)
        return self.head(h).squeeze(1)


train, test = make_data(20000), make_data(4000)
model = LoadModel().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

for step in range(STEPS):
    pick = torch.randint(0, 20000, (BATCH,), device=device)
    stop, minute, load = (column[pick] for column in train)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(stop, minute).float(), load)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    pred = model(test[0], test[1]).float()
print(f"metric {(pred - test[2]).pow(2).mean().sqrt().item():.4f}")
