"""Detects passing fronts in surface observations.

Each sample is a day of hourly reports of one synoptic station: pressure [hPa], temperature [K], dew point [K], wind
speed [m/s].  A front shows as a kink of the pressure curve, a tenth of a hectopascal per hour.  The label is the
hour of the passage in eight bins (or none).  Batches are made and sent to the device by a background thread.
"""
import queue
import threading

import numpy as np
import torch
from torch import nn

HOURS, BINS = 24, 8
MEAN = torch.tensor([1012.0, 284.0, 278.0, 5.0])[:, None]
STD = torch.tensor([0.8, 8.0, 7.0, 3.0])[:, None]
STEPS, BATCH = 200, 128
torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"


def synthesize(rng, n):
    """Draws n days with their labels."""
    t = np.arange(HOURS)[None]
    kind = rng.integers(0, BINS + 1, n)
    hour = np.where(kind < BINS, kind * 2.5 + 3 + rng.random(n), 99)[:, None]
    trend = rng.normal(0, 0.01, (n, 1))
    kink = 0.12 * np.clip(t - hour, 0, 5)
    wave = 0.3 * np.sin(2 * np.pi * (t - rng.random((n, 1)) * 24) / 12)
    pressure = 1012 + rng.normal(0, 0.7, (n, 1)) + trend * (t - 12) + wave + kink + rng.normal(0, 0.01, (n, HOURS))
    temperature = 284 + rng.normal(0, 6, (n, 1)) + 4 * np.sin(2 * np.pi * (t - 9) / 24) + rng.normal(0, 0.5, (n, HOURS))
    dew = temperature - np.abs(rng.normal(5, 2, (n, 1))) + rng.normal(0, 0.4, (n, HOURS))
    wind = np.abs(rng.normal(5, 2, (n, 1)) + rng.normal(0, 1, (n, HOURS)))
    days = np.stack([pressure, temperature, dew, wind], 1).astype(np.float32)
    return torch.from_numpy(days), torch.from_numpy(kind)


class Prefetcher(threading.Thread):
    """Keeps a few batches ready on the device; copies at half the width to spare the bus."""

    def __init__(self, steps, batch, seed, depth=4, dtype=torch.float16):
        super().__init__(daemon=True)
        self.rng = np.random.default_rng(seed)
        self.steps, self.batch, self.dtype = steps, batch, dtype
        self.ready = queue.Queue(maxsize=depth)

    def run(self):
        for _ in range(self.steps):
            days, kind = synthesize(self.rng, self.batch)
            days = days.to(device, self.dtype, non_blocking=True)
            self.ready.put((days, kind.to(device, non_blocking=True)))
        self.ready.put(None)

    def __iter__(self):
        self.start()
        while (item := self.ready.get()) is not None:
            yield item
        self.join()


class FrontNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.register_buffer("mean", MEAN)
        self.register_buffer("std", STD)
        self.windows = nn.Linear(4 * 6, width)
        self.mixer = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.head = nn.Sequential(nn.Linear(width * (HOURS - 5), 96), nn.GELU(), nn.Linear(96, BINS + 1))

    def forward(self, days):
        x = (days - self.mean) / self.std
        x = x.unfold(2, 6, 1).transpose(1, 2).flatten(2)  # six hours at a time
        x = self.windows(x)
        x = x + self.mixer(x)
        return self.head(x.flatten(1))


model = FrontNet().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda")

for step, (days, kind) in enumerate(Prefetcher(STEPS, BATCH, seed=1)):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(days), kind)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 20 == 0:
        print(f"step {step:3d} loss {loss.item():.3f}")

model.eval()
right = total = 0
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    for days, kind in Prefetcher(8, 256, seed=2):
        right += (model(days).argmax(1) == kind).sum().item()
        total += len(kind)
print(f"final metric: {right / total:.4f}")
