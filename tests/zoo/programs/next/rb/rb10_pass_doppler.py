"""Predict the Doppler residual of a ground station's passes from link features and the minute of the month."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

MONTH, ORBIT = 30 * 1440, 97.3  # minutes
STEPS, BATCH = 200, 512


def make_passes(n):
    minute = torch.randint(0, MONTH, (n,), device=device)
    link = torch.randn(n, 8, device=device)
    angle = 2 * math.pi * (minute.double() % ORBIT / ORBIT).float()
    day = 2 * math.pi * (minute % 1440).float() / 1440
    drift = torch.sin(angle) + 0.5 * torch.cos(2 * angle) * torch.sin(day)
    residual = drift + 0.5 * torch.tanh(link[:, 0]) + 0.3 * link[:, 1] * torch.sigmoid(link[:, 2])
    return link, minute, residual + 0.15 * torch.randn(n, device=device)


class OrbitBranch(nn.Module):
    """Harmonics of the orbit and of the day."""

    def __init__(self, orbit=4, daily=3, dim=32):
        super().__init__()
        periods = torch.cat([ORBIT / torch.arange(1, orbit + 1), 1440 / torch.arange(1, daily + 1)])
        self.register_buffer("periods", periods.double())
        self.proj = nn.Sequential(nn.Linear(2 * (orbit + daily), 48), nn.GELU(), nn.Linear(48, dim))

    def forward(self, minute, dtype):
        turn = (minute.double()[:, None] / self.periods) % 1.0
        phase = 2 * math.pi * turn.float()
        return self.proj(torch.cat([phase.sin(), phase.cos()], dim=1).to(dtype))


class DopplerNet(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.link = nn.Sequential(nn.Linear(8, 48), nn.GELU(), nn.Linear(48, dim))
        self.orbit = OrbitBranch(dim=dim)
        self.head = nn.Sequential(nn.GELU(), nn.Linear(dim, 48), nn.GELU(), nn.Linear(48, 1))

    def forward(self, link, minute):
        h = self.link(link)
        return self.head(h + self.orbit(minute, h.dtype)).squeeze(1)


train, test = make_passes(20000), make_passes(4000)
model = DopplerNet().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

for step in range(STEPS):
    pick = torch.randint(0, 20000, (BATCH,), device=device)
    link, minute, residual = (column[pick] for column in train)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(link, minute).float(), residual)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    pred = model(test[0], test[1]).float()
print(f"metric {(pred - test[2]).pow(2).mean().sqrt().item():.4f}")
