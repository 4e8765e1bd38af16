"""Arrival times of taxi rides from pickup, drop-off and hour; batches are prepared by a background thread."""
import queue
import threading

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
rng = np.random.default_rng(11)
device = "cuda" if torch.cuda.is_available() else "cpu"

CITY = np.array([52.3702, 4.8952])  # lat, lon of the centre
KM = np.array([111.2, 67.9])  # km per degree at this latitude
STEPS, BATCH = 260, 256


def rides(n):
    """Columns: pickup lat, pickup lon, drop-off lat, drop-off lon, hour; and the minutes that the ride took."""
    ends = CITY + rng.normal(0.0, 1.0, (n, 2, 2)) * np.array([0.018, 0.03])
    hour = rng.uniform(0, 24, n)
    leg = (ends[:, 1] - ends[:, 0]) * KM
    road = np.abs(leg).sum(1)  # streets form a grid
    middle = (ends.mean(1) - CITY) * KM
    busy = 1.0 + 0.7 * np.exp(-((hour - 17.5) ** 2) / 6) + 0.5 * np.exp(-((hour - 8.5) ** 2) / 4)
    crowded = 1.0 + 0.8 * np.exp(-(middle**2).sum(1) / 3.0)
    minutes = 2.0 + road / 28.0 * 60 * busy * crowded * rng.lognormal(0.0, 0.03, n)
    return np.concatenate([ends.reshape(n, 4), hour[:, None]], 1), minutes


class Prefetcher(threading.Thread):
    """Draws batches from arrays, brings them to the device and keeps a few ready."""

    def __init__(self, rows, minutes, steps, batch):
        super().__init__(daemon=True)
        self.rows, self.minutes, self.steps, self.batch = rows, minutes, steps, batch
        self.ready = queue.Queue(maxsize=4)

    def collate(self, index):
        ends, hour = self.rows[index, :4], self.rows[index, 4:]
        ends = torch.from_numpy(ends).to(device, torch.float16)
        hour = torch.from_numpy(hour).to(device, torch.float16)
        minutes = torch.from_numpy(self.minutes[index]).to(device, torch.float32)
        return ends, hour, minutes

    def run(self):
        order = np.random.default_rng(5)
        for _ in range(self.steps):
            self.ready.put(self.collate(order.integers(0, len(self.rows), self.batch)))
        self.ready.put(None)

    def __iter__(self):
        return iter(self.ready.get, None)


class EtaNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.register_buffer("km", torch.tensor(KM, dtype=torch.float32))
        self.register_buffer("centre", torch.tensor(CITY, dtype=torch.float32))

    def forward(self, ends, hour):
        start = (ends[:, :2] - self.centre) * self.km
        stop = (ends[:, 2:] - self.centre) * self.km
        leg = stop - start
        angle = hour / 24 * 2 * torch.pi
        x = torch.cat([start, leg, leg.abs(), leg.abs().sum(1, keepdim=True), torch.sin(angle), torch.cos(angle)], 1)
        return self.body(x * 0.5).squeeze(1).float() * 10


model = EtaNet().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=STEPS)
scaler = torch.amp.GradScaler("cuda")

loader = Prefetcher(*rides(12000), STEPS, BATCH)
loader.start()
for ends, hour, minutes in loader:
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.smooth_l1_loss(model(ends, hour), minutes)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    sched.step()
loader.join()

model.eval()
held = Prefetcher(*rides(4000), 0, 0)
ends, hour, minutes = held.collate(np.arange(4000))
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    mae = (model(ends, hour) - minutes).abs().mean()
print(f"metric {mae.item():.4f}")
