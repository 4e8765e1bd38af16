# Load forecast for a district heating grid. Batches are prepared in a background thread
# (device copies are the bottleneck on our boxes, so the loader ships them in the compute dtype).
import math
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
DAY = 1440.0                                   # minutes


def raw_batches(n_batches, size, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n_batches):
        minute = torch.randint(0, 28 * 1440, (size,), generator=g).float()     # minute of the four-week window
        outdoor = 5 + 8 * torch.randn(size, generator=g)
        phase = 2 * math.pi * minute / 60.0
        load = 0.9 * torch.sin(phase) + 0.5 * torch.cos(2 * math.pi * minute / DAY) - 0.05 * outdoor
        yield {"minute": minute, "outdoor": outdoor / 10, "load": load + 0.05 * torch.randn(size, generator=g)}


class Prefetcher:
    def __init__(self, source, depth=4, dtype=torch.float16):
        self.q = queue.Queue(depth)
        self.dtype = dtype
        self.thread = threading.Thread(target=self._fill, args=(source,), daemon=True)
        self.thread.start()

    def _fill(self, source):
        for batch in source:
            self.q.put({k: v.to(device, self.dtype, non_blocking=True) for k, v in batch.items()})
        self.q.put(None)

    def __iter__(self):
        while (batch := self.q.get()) is not None:
            yield batch


class Forecaster(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.register_buffer("periods", torch.tensor([60.0, 180.0, 720.0, DAY, 7 * DAY]))
        self.inp = nn.Linear(11, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, minute, outdoor):
        angle = 2 * math.pi * minute.float().unsqueeze(1) / self.periods
        x = torch.cat([angle.sin(), angle.cos(), outdoor.float().unsqueeze(1)], 1)
        h = F.gelu(self.inp(x))
        return self.out(F.gelu(self.mid(h))).squeeze(1)


model = Forecaster().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
steps = 240
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
scaler = torch.amp.GradScaler(device, init_scale=1024.0)
ema = None
for step, batch in enumerate(Prefetcher(raw_batches(steps, 128, seed=4))):
    with torch.autocast(device, dtype=torch.float16):
        pred = model(batch["minute"], batch["outdoor"])
        loss = F.mse_loss(pred, batch["load"])
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    ema = loss.item() if ema is None else 0.9 * ema + 0.1 * loss.item()
    if step % 40 == 0 or step == steps - 1:
        print(f"step {step:3d}  mse {loss.item():.4f}  smoothed {ema:.4f}")
