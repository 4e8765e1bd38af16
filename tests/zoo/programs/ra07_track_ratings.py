"""Ratings of music tracks from user and track embeddings; the tower and the head have optimizers of their own."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.float16
USERS, TRACKS, DIM, BATCH, STEPS = 100, 80, 16, 384, 330

taste = torch.randn(USERS, 4)
style = torch.randn(TRACKS, 4)
bias = 0.5 * torch.randn(TRACKS)


def ratings(n):
    user, track = torch.randint(0, USERS, (n,)), torch.randint(0, TRACKS, (n,))
    score = 3.0 + bias[track] + 0.6 * (taste[user] * style[track]).sum(1) + 0.1 * torch.randn(n)
    return user.to(device), track.to(device), score.to(device)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.track = nn.Embedding(TRACKS, DIM)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.track.weight, std=0.3)

    def forward(self, user, track):
        u, t = self.user(user), self.track(track)
        return torch.cat([u, t, u * t], dim=1)


class LossScale:
    """Dynamic loss scale: doubled after some good steps, halved when a gradient is not finite."""

    def __init__(self, scale=2.0**13, interval=20):
        self.scale, self.interval, self.good = scale, interval, 0

    def unscale(self, params):
        for p in params:
            if p.grad is not None:
                p.grad.div_(self.scale)

    def update(self, ok):
        self.good = self.good + 1 if ok else 0
        if not ok:
            self.scale /= 2
        elif self.good == self.interval:
            self.scale, self.good = min(self.scale * 2, 2.0**24), 0


tower = Tower().to(device)
head = nn.Sequential(nn.Linear(3 * DIM, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
opt_tower = torch.optim.Adam(tower.parameters(), lr=2e-2)
opt_head = torch.optim.Adam(head.parameters(), lr=5e-3)
loss_scale = LossScale()

for step in range(STEPS):
    user, track, score = ratings(BATCH)
    opt_tower.zero_grad(set_to_none=True)
    opt_head.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=amp_dtype):
        pred = head(tower(user, track)).squeeze(-1)
        loss = F.mse_loss(pred, score)
    (loss * loss_scale.scale).backward()
    loss_scale.unscale(tower.parameters())
    loss_scale.unscale(head.parameters())
    ok = all(p.grad.isfinite().all() for p in tower.parameters())
    if ok:
        opt_tower.step()
        opt_head.step()
    loss_scale.update(ok)
    if step % 60 == 59:
        print(f"step {step + 1} loss {loss.item():.4f} scale {loss_scale.scale:g}")

user, track, score = ratings(4096)
with torch.no_grad(), torch.autocast("cuda", dtype=amp_dtype):
    pred = head(tower(user, track)).squeeze(-1)
print(f"metric {math.sqrt(F.mse_loss(pred.float(), score).item()):.4f}")
