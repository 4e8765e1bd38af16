"""Tide level hours ahead from past levels and wind: two optimizers, one bounded scaler."""
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(26)
device = "cuda" if torch.cuda.is_available() else "cpu"
PAST, AHEAD, STEPS, BATCH = 36, 6, 240, 64
MIN_SCALE, MAX_SCALE = 1.0, 2.0**14


def tides(count):
    """Hourly levels (m) and wind of the past, and the level some hours ahead."""
    hour = torch.arange(PAST + AHEAD)
    start = 1000 * torch.rand(count, 1)
    moon = 2.0 * torch.sin(2 * math.pi * (hour + start) / 12.42)
    sun = 0.7 * torch.sin(2 * math.pi * (hour + start * 1.7) / 12.0)
    wind = torch.randn(count, PAST + AHEAD).cumsum(-1) * 0.2
    surge = F.avg_pool1d(wind.unsqueeze(1), 5, 1, 2).squeeze(1) * 0.3
    level = moon + sun + surge + 0.03 * torch.randn(count, PAST + AHEAD)
    return torch.stack([level[:, :PAST], wind[:, :PAST]], 1), level[:, -1]


class BoundedScaler(torch.amp.GradScaler):
    """A GradScaler whose scale stays between two bounds."""

    def update(self, new_scale=None):
        super().update(new_scale)
        value = self.get_scale()
        if not MIN_SCALE <= value <= MAX_SCALE:
            super().update(min(max(value, MIN_SCALE), MAX_SCALE))


body = nn.Sequential(
    nn.Conv1d(2, 24, 5, stride=2, padding=2), nn.SiLU(), nn.Conv1d(24, 24, 5, stride=2, padding=2), nn.SiLU(),
    nn.Flatten(),
).to(device)
head = nn.Sequential(nn.Linear(24 * PAST // 4, 48), nn.SiLU(), nn.Linear(48, 1)).to(device)
body_opt = torch.optim.AdamW(body.parameters(), lr=1e-3)
head_opt = torch.optim.SGD(head.parameters(), lr=0.02, momentum=0.9)
scaler = BoundedScaler("cuda", init_scale=2.0**12, growth_interval=50)
train_x, train_y = (v.to(device) for v in tides(3072))
test_x, test_y = (v.to(device) for v in tides(1536))
skipped = 0

for step in range(STEPS):
    pick = torch.randint(0, len(train_x), (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        level = head(body(train_x[pick])).squeeze(-1)
        loss = F.mse_loss(level, train_y[pick])
    body_opt.zero_grad()
    head_opt.zero_grad()
    scaler.scale(loss).backward()
    for opt, part in ((body_opt, body), (head_opt, head)):
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(part.parameters(), 1.0)
        scaler.step(opt)
    before = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")

print(f"skipped {skipped} of {STEPS} steps")
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = (head(body(test_x)).squeeze(-1).float() - test_y).pow(2).mean().sqrt()
print(f"metric {error.item():.4f}")
