"""Wear of a roller bearing from windows of a vibration signal."""
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, STEPS, BATCH = 128, 240, 24


def windows(count):
    """Windows of a shaft signal with impacts whose strength grows with the wear."""
    t = torch.arange(LENGTH) / LENGTH
    wear = torch.rand(count, 1)
    speed = 4 + 4 * torch.rand(count, 1)
    shaft = torch.sin(2 * math.pi * (speed * t + torch.rand(count, 1)))
    hits = torch.sin(2 * math.pi * (3.6 * speed * t + torch.rand(count, 1))).clamp_min(0.6) - 0.6
    ring = hits * torch.sin(2 * math.pi * 30 * t) * 4 * wear
    return (shaft + ring + 0.2 * torch.randn(count, LENGTH)).unsqueeze(1), wear.squeeze(1)


class WearNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, width, 9, stride=2, padding=4), nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2), nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.head(self.body(x).mean(-1)).squeeze(-1)


class LossScale:
    """Doubles after some good steps, halves after a bad one."""

    def __init__(self, start=2.0**13, every=8):
        self.value, self.every, self.good = start, every, 0

    def update(self, good):
        if not good:
            self.value, self.good = self.value / 2, 0
            return
        self.good += 1
        if self.good == self.every:
            self.value, self.good = self.value * 2, 0


model = WearNet().to(device)
params = list(model.parameters())
optimizer = torch.optim.Adam(params, lr=1e-3)
scale = LossScale()
train_x, train_y = (v.to(device) for v in windows(2048))
test_x, test_y = (v.to(device) for v in windows(1024))

for step in range(STEPS):
    pick = torch.randint(0, len(train_x), (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(train_x[pick])
        loss = F.mse_loss(out.float(), train_y[pick])
    optimizer.zero_grad()
    (loss * scale.value).backward()
    good = bool(torch.isfinite(loss))
    for p in params:
        # a single bad window must not spoil the weights
        p.grad = torch.nan_to_num(p.grad / scale.value, nan=0.0, posinf=0.0, neginf=0.0)
    if good:
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
    scale.update(good)
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = (model(test_x).float() - test_y).pow(2).mean().sqrt()
print(f"metric {error.item():.4f}")
