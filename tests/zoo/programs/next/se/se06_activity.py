"""Activity from a wrist sensor: a body with a slow optimizer, a head with a fast one."""
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
KINDS, AXES, LENGTH, STEPS, BATCH = 6, 3, 48, 240, 32


def recordings(count):
    """Three axes of acceleration (m/s2) of six kinds of motion."""
    kind = torch.randint(0, KINDS, (count,))
    t = torch.arange(LENGTH) / LENGTH
    rate = (2.0 + 1.3 * kind + 0.5 * torch.randn(count)).unsqueeze(-1)
    phase = torch.rand(count, AXES, 1) * 2 * math.pi
    swing = torch.sin(2 * math.pi * rate.unsqueeze(-1) * t + phase)
    swing = swing * (1 + 0.5 * torch.rand(count, AXES, 1))
    gravity = 9.8 * F.normalize(torch.randn(count, AXES, 1), dim=1)
    return gravity + 3 * swing + torch.randn(count, AXES, LENGTH), kind


class Body(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first = nn.Conv1d(AXES, width, 7, stride=2, padding=3)
        self.second = nn.Conv1d(width, width, 5, stride=2, padding=2)
        self.third = nn.Conv1d(width, width, 5, stride=2, padding=2)

    def forward(self, x):
        x = F.relu(self.first(x))
        x = F.relu(self.second(x))
        return F.relu(self.third(x)).amax(-1)


class LossScaler:
    """Scales losses; `unscale_` says whether all gradients are finite."""

    def __init__(self, start=2.0**12, window=10):
        self.scale, self.window, self.streak = start, window, 0

    def unscale_(self, module):
        finite = True
        for p in module.parameters():
            p.grad.div_(self.scale)
            finite = finite and bool(torch.isfinite(p.grad).all())
        return finite

    def update(self, finite):
        self.streak = self.streak + 1 if finite else 0
        if not finite:
            self.scale /= 2
        elif self.streak == self.window:
            self.scale, self.streak = self.scale * 2, 0


body, head = Body().to(device), nn.Linear(16, KINDS).to(device)
body_opt = torch.optim.AdamW(body.parameters(), lr=1e-3)
head_opt = torch.optim.AdamW(head.parameters(), lr=3e-3)
scaler = LossScaler()
train_x, train_k = (v.to(device) for v in recordings(2048))
test_x, test_k = (v.to(device) for v in recordings(1536))

for step in range(STEPS):
    pick = torch.randint(0, len(train_x), (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(head(body(train_x[pick])), train_k[pick])
    body_opt.zero_grad()
    head_opt.zero_grad()
    (loss * scaler.scale).backward()
    finite = scaler.unscale_(body)
    scaler.unscale_(head)
    if finite:
        body_opt.step()
        head_opt.step()
    scaler.update(finite)
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.3f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    wrong = (head(body(test_x)).argmax(-1) != test_k).float().mean()
print(f"metric {wrong.item():.4f}")
