import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
device = "cuda" if torch.cuda.is_available() else "cpu"

STEPS, PER_WORKER, SUBSTEPS, DT = 90, 64, 1000, 2e-4


class SpringWorker(threading.Thread):
    """Integrates a batch of anharmonic oscillators and hands over (start, end) pairs."""

    def __init__(self, seed, out, batches, state_dtype=torch.float16):
        super().__init__(daemon=True)
        self.generator = torch.Generator().manual_seed(seed)
        self.out, self.batches, self.state_dtype = out, batches, state_dtype

    def integrate(self, x, v):
        x, v = x.to(self.state_dtype), v.to(self.state_dtype)
        for _ in range(SUBSTEPS):
            force = -1.2 * x - 0.1 * x * x * x - 0.05 * v
            v = v + DT * force
            x = x + DT * v
        return x.float(), v.float()

    def run(self):
        for _ in range(self.batches):
            x = 2.0 * torch.randn(PER_WORKER, generator=self.generator)
            v = 2.0 * torch.randn(PER_WORKER, generator=self.generator)
            x1, v1 = self.integrate(x, v)
            self.out.put((torch.stack([x, v], 1), torch.stack([x1, v1], 1)))


def reference(n, generator):
    x = (2.0 * torch.randn(n, generator=generator)).double()
    v = (2.0 * torch.randn(n, generator=generator)).double()
    start = torch.stack([x, v], 1)
    for _ in range(SUBSTEPS):
        v = v + DT * (-1.2 * x - 0.1 * x ** 3 - 0.05 * v)
        x = x + DT * v
    return start.float().to(device), torch.stack([x, v], 1).float().to(device)


class Propagator(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, s):
        return s + self.net(s)


queues = [queue.Queue(maxsize=4) for _ in range(2)]
workers = [SpringWorker(100 + i, q, STEPS) for i, q in enumerate(queues)]
for w in workers:
    w.start()

model = Propagator().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
scaler = torch.amp.GradScaler("cuda")
val_x, val_y = reference(512, torch.Generator().manual_seed(77))

for step in range(STEPS):
    parts = [q.get() for q in queues]
    start = torch.cat([p[0] for p in parts]).to(device)
    end = torch.cat([p[1] for p in parts]).to(device)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(start), end)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 15 == 14:
        with torch.no_grad():
            val = F.mse_loss(model(val_x), val_y)
        print(f"step {step + 1:3d}  train {loss.item():.4f}  reference {val.item():.4f}")

for w in workers:
    w.join()
