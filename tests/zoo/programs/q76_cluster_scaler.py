"""Short-range potential of argon-like clusters from sampled energies, some of them from close collisions.

Trained in half precision with the dynamic loss scale of our older code base.
"""
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

ATOMS, RADIAL, BATCH, EPOCHS = 6, 16, 50, 14


class LossScale:
    """Dynamic loss scale: back off on overflow, grow after a window of good steps."""

    def __init__(self, optimizer, init=2.0**16, window=200, factor=2.0, lowest=2.0**11):
        self.optimizer, self.scale = optimizer, init
        self.window, self.factor, self.lowest = window, factor, lowest
        self.good = self.overflows = 0

    def step(self):
        grads = [p.grad for group in self.optimizer.param_groups for p in group["params"]]
        if all(torch.isfinite(g).all() for g in grads):
            for g in grads:
                g.div_(self.scale)
            self.optimizer.step()
            self.good += 1
            if self.good % self.window == 0:
                self.scale *= self.factor
        else:
            self.good = 0
            self.overflows += 1
            self.scale = max(self.scale / self.factor, self.lowest)


def clusters(n, close):
    """Six atoms on a jittered ring; in a part of the samples two atoms collide. Lennard-Jones with a soft core."""
    angle = torch.arange(ATOMS) * 2 * torch.pi / ATOMS
    ring = 1.25 * torch.stack([angle.cos(), angle.sin(), torch.zeros(ATOMS)], dim=1)
    pos = ring + 0.12 * torch.randn(n, ATOMS, 3)
    hit = torch.rand(n) < close
    gap = 0.75 + 0.20 * torch.rand(n, 1)
    direction = nn.functional.normalize(torch.randn(n, 3), dim=1)
    pos[hit, 1] = pos[hit, 0] + (gap * direction)[hit]
    i, j = torch.triu_indices(ATOMS, ATOMS, 1)
    r = (pos[:, i] - pos[:, j]).norm(dim=-1)
    s = 1 / (r**6 + 0.05)
    return r.to(device), (4 * (s**2 - s)).sum(1).to(device), hit.to(device)


class PairPotential(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.7, 3.2, RADIAL))
        self.body = nn.Sequential(
            nn.Linear(RADIAL, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(self, r):
        rbf = torch.exp(-20.0 * (r[..., None] - self.centres) ** 2)
        return self.body(rbf).squeeze(-1).sum(-1)


r, energy, _ = clusters(4000, 0.03)
r_test, energy_test, hit_test = clusters(1000, 0.03)
typical = energy.median()

model = PairPotential().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
scale = LossScale(optimizer)
for epoch in range(EPOCHS):
    total = 0.0
    for batch in torch.randperm(len(r)).to(device).split(BATCH):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.huber_loss(model(r[batch]), energy[batch] - typical, delta=50.0)
        optimizer.zero_grad()
        (scale.scale * loss).backward()
        scale.step()
        total += loss.item() * BATCH / len(r)
    schedule.step()
    if epoch % 2 == 1:
        print(f"epoch {epoch} huber {total:.4f} scale {scale.scale:.0f} overflows {scale.overflows}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = (model(r_test) + typical - energy_test).abs()
print(f"mae without collisions {error[~hit_test].mean().item():.4f} with {error[hit_test].mean().item():.3f}")
print("METRIC", error.pow(2).mean().sqrt().item())
