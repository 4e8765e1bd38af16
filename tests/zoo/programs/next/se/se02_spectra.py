"""Concentrations of five dyes from absorption spectra; a half model with FP32 masters."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
CHANNELS, DYES, STEPS, BATCH = 96, 5, 250, 64
LOSS_SCALE = 2048.0
MAX_NORM = 2.0

grid = torch.linspace(0, 1, CHANNELS)
peaks = torch.rand(DYES, 1) * 0.8 + 0.1
widths = 0.03 + 0.05 * torch.rand(DYES, 1)
shapes = torch.exp(-(((grid - peaks) / widths) ** 2))


def spectra(count):
    """Saturating mixtures of the dyes, and their concentrations."""
    amount = 3 * torch.rand(count, DYES)
    absorbed = amount @ shapes
    seen = 1.5 * torch.tanh(absorbed / 1.5) + 0.02 * torch.randn(count, CHANNELS)
    return seen, amount


def build():
    return nn.Sequential(
        nn.Linear(CHANNELS, 128), nn.GELU(),
        nn.Linear(128, 128), nn.GELU(),
        nn.Linear(128, DYES),
    )


def clip_by_norm(params, limit):
    """Scale all gradients down together when their norm is over the limit."""
    total = sum((p.grad**2).sum() for p in params) ** 0.5
    factor = (limit / (total + 1e-6)).clamp(max=1.0)
    for p in params:
        p.grad.mul_(factor)
    return total


model = build().to(device).to(torch.float16)
weights = list(model.parameters())
masters = [w.detach().clone().float().requires_grad_() for w in weights]
optimizer = torch.optim.AdamW(masters, lr=2e-3, weight_decay=1e-3)
train_x, train_y = (v.to(device) for v in spectra(2048))
test_x, test_y = (v.to(device) for v in spectra(1024))

for step in range(STEPS):
    pick = torch.randint(0, len(train_x), (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(train_x[pick].to(torch.float16))
    loss = F.mse_loss(out.float(), train_y[pick])
    model.zero_grad()
    (loss * LOSS_SCALE).backward()
    norm = clip_by_norm(weights, MAX_NORM * LOSS_SCALE)
    for master, w in zip(masters, weights):
        master.grad = w.grad.float() / LOSS_SCALE
    optimizer.step()
    with torch.no_grad():
        for master, w in zip(masters, weights):
            w.copy_(master)
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = (model(test_x.to(torch.float16)).float() - test_y).abs().mean()
print(f"metric {error.item():.4f}")
