"""Water level in a harbour; a loader thread prepares batches in half precision while the network trains."""
import math
import queue
import threading

import torch
from torch import nn

torch.manual_seed(37)
device = "cuda" if torch.cuda.is_available() else "cpu"
HOURS, BATCH, STEPS = 20000, 256, 250


def make_record():
    """Return one row per hour (phases of moon and sun in turns, wind, pressure anomaly) and the level."""
    hour = torch.arange(HOURS, dtype=torch.float64)
    moon, sun = (hour / 12.42) % 1, (hour / 12.0) % 1
    wind, pressure = torch.randn(2, HOURS)
    level = 1.2 * torch.sin(2 * math.pi * moon) + 0.4 * torch.sin(2 * math.pi * sun + 0.5)
    level = level.float() + 0.2 * wind * wind.abs() - 0.15 * pressure + 0.1 * torch.randn(HOURS)
    return torch.stack([moon.float(), sun.float(), wind, pressure], dim=1), level


class LoaderThread(threading.Thread):
    """Draws batches, converts them for the transfer and keeps a few ready."""

    def __init__(self, rows, level, steps):
        super().__init__(daemon=True)
        self.rows, self.level, self.steps = rows, level, steps
        self.ready = queue.Queue(maxsize=8)
        self.picks = torch.Generator().manual_seed(7)

    def run(self):
        for _ in range(self.steps):
            picked = torch.randint(len(self.rows), (BATCH,), generator=self.picks)
            self.ready.put(pack(self.rows[picked], self.level[picked]))
        self.ready.put(None)

    def __iter__(self):
        return iter(self.ready.get, None)


def pack(rows, level):
    """Half precision halves the copy to the card."""
    return rows.half().to(device, non_blocking=True), level.to(device, non_blocking=True)


class LevelNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, rows):
        angle = 2 * math.pi * rows[:, :2].float()
        return self.net(torch.cat([angle.sin(), angle.cos(), rows[:, 2:].float()], dim=1)).squeeze(1)


rows, level = make_record()
shuffled = torch.randperm(HOURS)
train, test = shuffled[:16000], shuffled[16000:]
model = LevelNet().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
loader = LoaderThread(rows[train], level[train], STEPS)
loader.start()

for step, (batch, wanted) in enumerate(loader):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(batch), wanted)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")

batch, wanted = pack(rows[test], level[test])
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    rmse = nn.functional.mse_loss(model(batch).float(), wanted).sqrt()
print("metric", round(rmse.item(), 5))
