"""Two replicas by hand, gradients summed over an FP16 bucket, with a dynamic loss scaler of our own."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(37)
device = "cuda" if torch.cuda.is_available() else "cpu"
WORLD = 2


class DynamicLossScaler:
    def __init__(self, scale=2.0**24, factor=2.0, window=50, hysteresis=1):
        self.scale, self.factor, self.window = scale, factor, window
        self.hysteresis = self.left = hysteresis
        self.clean = self.skipped = 0

    def update(self, overflow):
        if overflow:
            self.skipped += 1
            self.clean = 0
            self.left -= 1
            if self.left <= 0:
                self.scale, self.left = max(self.scale / self.factor, 1.0), self.hysteresis
        else:
            self.clean += 1
            if self.clean % self.window == 0:
                self.scale *= self.factor


def all_reduce(replicas):
    """Sums the scaled gradients of all replicas, in half precision, as they would travel over the wire."""
    buckets = [torch.cat([p.grad.flatten() for p in r.parameters()]).half() / WORLD for r in replicas]
    return torch.stack(buckets).sum(0)


def build():
    return nn.Sequential(nn.Linear(24, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 16)).to(device)


mix = torch.randn(24, 16)


def batch(n=64):
    x = torch.randn(n, 24)
    return x.to(device), (x @ mix + torch.sin(2 * x[:, :16])).argmax(1).to(device)


master = build()
replicas = [copy.deepcopy(master) for _ in range(WORLD)]
opt = torch.optim.SGD(master.parameters(), lr=0.1, momentum=0.9)
scaler = DynamicLossScaler()

for step in range(260):
    total = 0.0
    for r in replicas:
        r.load_state_dict(master.state_dict())
        r.zero_grad(set_to_none=True)
        x, y = batch()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(r(x), y)
        (loss * scaler.scale).backward()
        total += loss.item() / WORLD
    flat = all_reduce(replicas).float() / scaler.scale
    overflow = not torch.isfinite(flat).all()
    if not overflow:
        for p, g in zip(master.parameters(), flat.split([p.numel() for p in master.parameters()])):
            p.grad = g.view_as(p)
        nn.utils.clip_grad_norm_(master.parameters(), 1.0)
        opt.step()
    scaler.update(overflow)
    if step % 20 == 0:
        print(f"step {step:3d}  loss {total:.4f}  scale {scaler.scale:g}  skipped {scaler.skipped}")

x, y = batch(3000)
with torch.no_grad():
    out = master(x)
print(f"final loss {F.cross_entropy(out, y).item():.4f}  accuracy {(out.argmax(1) == y).float().mean().item():.3f}")
