"""Turbulence closure: learns the unresolved stress of a filtered random velocity field from its resolved gradients."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(29)

FINE, COARSE, BATCH, STEPS = 64, 16, 12, 100
STRESS = 2e-4  # m2/s2, a usual stress
LOSS_SCALE = 128.0


def field(count):
    """Return velocities (m/s) of slow, swirling air with a spectrum that falls as k^-5/3."""
    k = torch.fft.fftfreq(FINE, 1 / FINE)
    k2 = k[:, None] ** 2 + k[None, :] ** 2
    noise = torch.fft.fft2(torch.randn(count, FINE, FINE))
    stream = noise * (k2 + 4.0) ** (-1.9)
    u, v = (torch.fft.ifft2(1j * part * stream).real for part in (k[None, :], -k[:, None]))
    velocity = torch.stack([u, v], 1)
    return 0.04 * velocity / velocity.std((1, 2, 3), keepdim=True)


def box(x):
    return F.avg_pool2d(x, FINE // COARSE)


def samples(count):
    """Return resolved gradients in units of their spread and the unresolved stress in m2/s2."""
    velocity = field(count)
    u, v = velocity[:, :1], velocity[:, 1:]
    coarse = box(velocity)
    products = box(torch.cat([u * u, u * v, v * v], 1))
    a, b = coarse[:, :1], coarse[:, 1:]
    stress = products - torch.cat([a * a, a * b, b * b], 1)
    dx = torch.roll(coarse, -1, 3) - torch.roll(coarse, 1, 3)
    dy = torch.roll(coarse, -1, 2) - torch.roll(coarse, 1, 2)
    return (torch.cat([dx, dy], 1) / 0.02).to(device), stress.to(device)


def periodic(inside, outside):
    return nn.Conv2d(inside, outside, 3, padding=1, padding_mode="circular")


net = nn.Sequential(periodic(4, 16), nn.SiLU(), periodic(16, 16), nn.SiLU(), nn.Conv2d(16, 3, 1)).to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=4e-3, eps=1e-16)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
train_x, train_y = samples(192)
skipped = 0

for step in range(STEPS):
    pick = torch.randint(len(train_x), (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(STRESS * net(train_x[pick]), train_y[pick])
    optimizer.zero_grad()
    (loss * LOSS_SCALE).backward()
    grads = [p.grad for p in net.parameters()]
    if all(torch.isfinite(grad).all() for grad in grads):
        torch._foreach_div_(grads, LOSS_SCALE)
        optimizer.step()
    else:
        skipped += 1
    schedule.step()
    if step % 30 == 0:
        print(f"step {step} relative error {(loss.item() ** 0.5 / train_y[pick].std().item()):.3f} skipped {skipped}")

x, y = samples(128)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    guess = (STRESS * net(x)).float()
error = ((guess - y).square().mean() / (y - y.mean((0, 2, 3), keepdim=True)).square().mean()).item()
print(f"stress of {y.abs().mean().item():.2e} m2/s2")
print("METRIC", round(error, 4))
