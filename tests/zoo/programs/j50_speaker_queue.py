"""Self-supervised speaker embeddings (MoCo style): momentum key encoder and a queue of past keys.

Two crops of one recording are positives; the queue, kept in half as it is the largest thing in memory at
full size, gives the negatives.
"""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

MELS, FRAMES = 24, 30
DIM, QUEUE, TEMPERATURE = 32, 512, 0.07
device = "cuda" if torch.cuda.is_available() else "cpu"


class Recordings:
    """Log energies: a voice (fixed envelope over the bands), phones that come and go, and a channel tilt."""

    def __init__(self, speakers, seed):
        self.rng = np.random.default_rng(seed)
        basis = np.cos(np.pi * np.outer(np.arange(1, 13), (np.arange(MELS) + 0.5) / MELS))
        self.basis = basis
        self.voices = self.rng.normal(size=(speakers, 12)) @ basis * 0.22
        self.phones = self.rng.normal(size=(20, 12)) @ basis * 0.30

    def crop(self, who):
        r, n = self.rng, len(who)
        phones = r.integers(0, 20, (n, FRAMES // 5)).repeat(5, 1)
        tilt = 0.4 * r.normal(size=(n, 1, 1)) * np.linspace(-1, 1, MELS)
        level = 1.5 * r.normal(size=(n, 1, 1))
        x = self.voices[who][:, None] + self.phones[phones] + tilt + level + 0.5 * r.normal(size=(n, FRAMES, MELS))
        return torch.tensor(x, dtype=torch.float32, device=device)

    def pairs(self, n):
        who = self.rng.integers(0, len(self.voices), n)
        return self.crop(who), self.crop(who), who


class Encoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.frame = nn.Sequential(nn.Linear(MELS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.project = nn.Linear(2 * width, DIM)

    def forward(self, x):
        x = x - x.mean((1, 2), keepdim=True)
        h = self.frame(x)
        stats = torch.cat([h.mean(1), (h.float().var(1) + 1e-5).sqrt()], 1)
        return F.normalize(self.project(stats), dim=1, eps=1e-12)


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = Encoder()
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        start = F.normalize(torch.randn(QUEUE, DIM), dim=1)
        self.register_buffer("queue", start.half())
        self.pointer = 0

    @torch.no_grad()
    def follow(self, momentum=0.99):
        for k, q in zip(self.key.parameters(), self.query.parameters()):
            k.mul_(momentum).add_(q, alpha=1 - momentum)

    @torch.no_grad()
    def push(self, keys):
        n = len(keys)
        self.queue[self.pointer : self.pointer + n] = keys.to(self.queue.dtype)
        self.pointer = (self.pointer + n) % QUEUE

    def forward(self, a, b):
        q = self.query(a)
        with torch.no_grad():
            self.follow()
            k = self.key(b)
        positive = (q * k).sum(1, keepdim=True)
        negative = q @ self.queue.clone().t()
        logits = torch.cat([positive, negative], 1) / TEMPERATURE
        self.push(k)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


def equal_error_rate(encoder, data):
    encoder.eval()
    a, b, who = data.pairs(300)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        score = (encoder(a).float() @ encoder(b).float().t()).cpu().numpy()
    same = who[:, None] == who[None]
    target, other = np.sort(score[same]), np.sort(score[~same])
    limits = np.linspace(-1, 1, 2001)
    miss = np.searchsorted(target, limits) / len(target)
    accept = 1 - np.searchsorted(other, limits) / len(other)
    i = np.argmin(np.abs(miss - accept))
    return (miss[i] + accept[i]) / 2


def main():
    torch.manual_seed(13)
    data = Recordings(60, 13)
    moco = MoCo().to(device)
    optimizer = torch.optim.SGD(moco.query.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20, growth_interval=50)
    for step in range(200):
        a, b, _ = data.pairs(64)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = moco(a, b)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        if step % 40 == 0:
            print(f"step {step:3d}  contrast {loss.item():.3f}  scale {scaler.get_scale():.0f}")
    print(f"final metric: {equal_error_rate(moco.query, data):.4f}")


if __name__ == "__main__":
    main()
