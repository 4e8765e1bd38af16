"""Onset of a wave in a seismogram; a half model, FP32 masters and a constant scale."""
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(14)
device = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, STEPS, BATCH = 96, 220, 48
LOSS_SCALE = 512.0
MAX_NORM = 2.0


def traces(count):
    """Noise, then a decaying wave; and the time of its onset in 0 to 1."""
    t = torch.arange(LENGTH) / LENGTH
    onset = 0.1 + 0.7 * torch.rand(count, 1)
    after = torch.relu(t - onset)
    rate = 8 + 6 * torch.rand(count, 1)
    wave = torch.sin(2 * math.pi * rate * after) * torch.exp(-4 * after) * (1 + 2 * torch.rand(count, 1))
    return (wave + 0.15 * torch.randn(count, LENGTH)).unsqueeze(1), onset.squeeze(1)


class Picker(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, width, 7, stride=2, padding=3), nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2), nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Linear(width * LENGTH // 4, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.head(self.body(x).flatten(1)).squeeze(-1)


def clip_by_norm(grads, limit):
    """Scale all gradients down together when their norm is over the limit."""
    total = sum((g**2).sum() for g in grads) ** 0.5
    factor = (limit / (total + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(factor)
    return total


model = Picker().to(device).to(torch.float16)
weights = list(model.parameters())
masters = [w.detach().clone().float().requires_grad_() for w in weights]
optimizer = torch.optim.AdamW(masters, lr=1e-3)
train_x, train_y = (v.to(device) for v in traces(2048))
test_x, test_y = (v.to(device) for v in traces(1024))

for step in range(STEPS):
    pick = torch.randint(0, len(train_x), (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(train_x[pick].to(torch.float16))
    loss = F.mse_loss(out.float(), train_y[pick])
    model.zero_grad()
    (loss * LOSS_SCALE).backward()
    for master, w in zip(masters, weights):
        master.grad = w.grad.float() / LOSS_SCALE
    norm = clip_by_norm([m.grad for m in masters], MAX_NORM)
    optimizer.step()
    with torch.no_grad():
        for master, w in zip(masters, weights):
            w.copy_(master)
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f} norm {norm.item():.3f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = (model(test_x.to(torch.float16)).float() - test_y).abs().mean()
print(f"metric {error.item():.4f}")
