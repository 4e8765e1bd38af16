import queue
import threading

import torch
import torch.nn as nn

# Pump-failure regression from telemetry. A collector thread receives the telemetry and keeps the
# running moments which the model uses to standardise its inputs.
torch.manual_seed(2)
device = "cuda" if torch.cuda.is_available() else "cpu"
CHANNELS = 12
OFFSET = torch.tensor([20., 35., 5., 12., 60., 8., 2., 1., 0., 45., 15., 30.])
SPREAD = torch.tensor([3., 6., 1., 2., 9., 2., .5, .3, 1., 4., 3., 5.])


class Moments:
    def __init__(self, n):
        self.lock = threading.Lock()
        self.count = torch.zeros((), device=device, dtype=torch.float16)
        self.total = torch.zeros(n, device=device, dtype=torch.float16)
        self.square = torch.zeros(n, device=device, dtype=torch.float16)

    def add(self, x):
        x = x.to(self.total.dtype)
        with self.lock:
            self.count += len(x)
            self.total += x.sum(0)
            self.square += (x * x).sum(0)

    def mean_std(self):
        with self.lock:
            mean = self.total / self.count
            var = (self.square / self.count - mean * mean).float()
        return mean.float(), var.clamp_min(1e-2).sqrt()


class Collector(threading.Thread):
    def __init__(self, steps, batch):
        super().__init__(daemon=True)
        self.out = queue.Queue(1)
        self.steps, self.batch = steps, batch
        self.moments = Moments(CHANNELS)
        self.g = torch.Generator().manual_seed(12)

    def run(self):
        for _ in range(self.steps):
            z = torch.randn(self.batch, CHANNELS, generator=self.g)
            y = torch.sin(z[:, 0] + z[:, 4]) + 0.5 * z[:, 9] * z[:, 1].tanh()
            x = (OFFSET + SPREAD * z).to(device)
            self.moments.add(x)
            self.out.put((x, y.to(device), self.moments.mean_std()))


model = nn.Sequential(nn.Linear(CHANNELS, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)).to(device)
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler(device, init_scale=512.0)
STEPS = 200
collector = Collector(STEPS, 64)
collector.start()
smooth = None
for step in range(STEPS):
    x, y, (mean, std) = collector.out.get()
    with torch.autocast(device, dtype=torch.float16):
        pred = model((x - mean) / std).squeeze(1)
        loss = nn.functional.mse_loss(pred, y)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    smooth = loss.item() if smooth is None else 0.92 * smooth + 0.08 * loss.item()
    if step % 25 == 0 or step == STEPS - 1:
        print(f"{step:4d} mse {loss.item():.4f} smoothed {smooth:.4f}")
