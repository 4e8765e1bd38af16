"""Sensor forecasting; a feeder thread keeps running statistics and standardises the windows."""
import queue
import threading
import torch
from torch import nn

torch.manual_seed(2)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CH, WIN = 6, 24


class RunningNorm:
    def __init__(self, ch, dtype=torch.float32):
        self.count = torch.zeros((), dtype=dtype, device=device)
        self.mean = torch.zeros(ch, dtype=dtype, device=device)
        self.m2 = torch.ones(ch, dtype=dtype, device=device)

    def observe(self, window):
        for row in window.to(self.mean.dtype):
            self.count += 1
            delta = row - self.mean
            self.mean += delta / self.count
            self.m2 += delta * (row - self.mean)

    def __call__(self, window):
        std = (self.m2 / self.count).clamp_min(1e-6).sqrt()
        return (window - self.mean) / std


def source(steps, gen):
    level = torch.tensor([4.0, 9.0, 2.0, 12.0, 6.0, 1.0])
    amp = torch.tensor([5.0, 8.0, 4.0, 9.0, 6.0, 7.0])
    for k in range(steps):
        t = torch.arange(WIN + 1) + WIN * k
        wave = torch.sin(0.37 * t[:, None] * torch.arange(1, CH + 1) / 4)
        yield (level + amp * (wave + 0.3 * torch.randn(WIN + 1, CH, generator=gen))).to(device)


def feeder(q, norm, steps):
    gen = torch.Generator().manual_seed(4)
    for chunk in source(steps, gen):
        norm.observe(chunk[:-1])
        z = norm(chunk).float()
        q.put((z[:-1], z[-1]))
    q.put(None)


model = nn.GRU(CH, 32, batch_first=True).to(device)
readout = nn.Linear(32, CH).to(device)
opt = torch.optim.Adam(list(model.parameters()) + list(readout.parameters()), lr=3e-3)
scaler = torch.amp.GradScaler(device.type, init_scale=2048.0)
norm = RunningNorm(CH, dtype=torch.float16)
q = queue.Queue(maxsize=4)
th = threading.Thread(target=feeder, args=(q, norm, 110), daemon=True)
th.start()

n = 0
while (item := q.get()) is not None:
    hist, nxt = item
    with torch.autocast(device.type, dtype=torch.float16):
        out, _ = model(hist[None])
        pred = readout(out[:, -1])
    loss = nn.functional.smooth_l1_loss(pred.float(), nxt[None])
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    n += 1
    if n % 40 == 0:
        print(n, f"loss {loss.item():.4f} |z| {hist.abs().mean().item():.3f}")
th.join()
