"""Short-term load of a small grid; a loader thread prepares batches while the network trains."""
import math
import queue
import threading

import torch
from torch import nn

torch.manual_seed(29)
device = "cuda" if torch.cuda.is_available() else "cpu"
QUARTERS = 365 * 96
BATCH, STEPS = 256, 250


def make_year():
    """Return one row per quarter of an hour (hours since New Year, temperature, wind) and the load."""
    hour = torch.arange(QUARTERS) / 4
    day = 2 * math.pi * hour / 24
    season = torch.cos(2 * math.pi * hour / 8760)
    temperature = 10 - 9 * season - 3 * torch.cos(day) + 2 * torch.randn(QUARTERS)
    wind = 5 + 2 * torch.randn(QUARTERS)
    weekend = ((hour / 24).floor() % 7 >= 5).float()
    load = 1.0 * torch.sin(day - 1.5) + 0.5 * torch.sin(2 * day + 0.4) - 0.6 * weekend
    load = load - 0.04 * (temperature - 10) - 0.02 * (wind - 5) + 0.1 * torch.randn(QUARTERS)
    return torch.stack([hour, temperature, wind], dim=1), load


class LoaderThread(threading.Thread):
    """Draws batches, converts them for the transfer and keeps a few ready."""

    def __init__(self, rows, load, steps):
        super().__init__(daemon=True)
        self.rows, self.load, self.steps = rows, load, steps
        self.ready = queue.Queue(maxsize=8)
        self.picks = torch.Generator().manual_seed(7)

    def run(self):
        for _ in range(self.steps):
            picked = torch.randint(len(self.rows), (BATCH,), generator=self.picks)
            self.ready.put(pack(self.rows[picked], self.load[picked]))
        self.ready.put(None)

    def __iter__(self):
        return iter(self.ready.get, None)


def pack(rows, load):
    """Half precision halves the copy to the card."""
    return rows.half().to(device, non_blocking=True), load.to(device, non_blocking=True)


class LoadNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, rows):
        hour, weather = rows[:, :1].float(), rows[:, 1:3].float()
        waves = []
        for period in (24, 12, 168, 84):
            angle = 2 * math.pi * hour / period
            waves += [angle.sin(), angle.cos()]
        weather = (weather - torch.tensor([10.0, 5.0], device=rows.device)) / torch.tensor([7.0, 2.0], device=rows.device)
        return self.net(torch.cat([*waves, weather], dim=1)).squeeze(1)


rows, load = make_year()
shuffled = torch.randperm(QUARTERS)
train, test = shuffled[:28000], shuffled[28000:]
model = LoadNet().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
loader = LoaderThread(rows[train], load[train], STEPS)
loader.start()

for step, (batch, wanted) in enumerate(loader):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(batch), wanted)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f}")

batch, wanted = pack(rows[test], load[test])
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    rmse = nn.functional.mse_loss(model(batch).float(), wanted).sqrt()
print("metric", round(rmse.item(), 5))
