"""Pairing of whale calls heard by two hydrophones: a contrastive loss, each direction in a thread of a pool."""

import math
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

BINS, LATENT, DIM, STEPS, BATCH, TAU = 40, 6, 24, 160, 96, 0.3

torch.manual_seed(13)
device = "cuda" if torch.cuda.is_available() else "cpu"

voice_a, voice_b = torch.randn(LATENT, BINS) / 2, torch.randn(LATENT, BINS) / 2


def calls(n):
    """The same n calls as heard at hydrophone A and at B."""
    call = torch.randn(n, LATENT)
    a = torch.tanh(call @ voice_a) + 0.3 * torch.randn(n, BINS)
    b = torch.tanh(call @ voice_b) + 0.3 * torch.randn(n, BINS)
    return a.to(device), b.to(device)


def tower():
    return nn.Sequential(
        nn.Linear(BINS, 64), nn.SiLU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, DIM)
    ).to(device)


def direction(query, key):
    """InfoNCE of one direction; autocast is a thread's own and is opened here again."""
    with torch.autocast("cuda", dtype=torch.float16):
        weights = torch.exp(query @ key.T / (TAU * math.sqrt(DIM)))
        share = weights.diagonal() / weights.sum(1)
        return -torch.log(share).mean()


left, right = tower(), tower()
parameters = [*left.parameters(), *right.parameters()]
optimizer = torch.optim.Adam(parameters, lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
with ThreadPoolExecutor(max_workers=2) as pool:
    for step in range(STEPS):
        a, b = calls(BATCH)
        with torch.autocast("cuda", dtype=torch.float16):
            za, zb = left(a), right(b)
        jobs = [pool.submit(direction, za, zb), pool.submit(direction, zb, za)]
        loss = sum(job.result() for job in jobs) / 2
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")
print(f"scale at the end {scaler.get_scale():.0f}")

with torch.no_grad():
    hits = []
    for _ in range(20):
        a, b = calls(BATCH)
        hits.append(((left(a) @ right(b).T).argmax(1).cpu() == torch.arange(BATCH)).float().mean())
print(f"metric {torch.stack(hits).mean().item():.4f}")
