"""Small equivariant message passing (PaiNN-like) on a solvated-cluster data set: energy with angular terms.

Clusters have six beads; messages pass between beads within the cutoff.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

BEADS, CUTOFF = 6, 2.2


def geometry(pos):
    delta = pos[:, None] - pos[:, :, None]
    r = delta.norm(dim=-1) + torch.eye(BEADS, device=pos.device) * 1e3
    envelope = torch.where(r < CUTOFF, 0.5 * (torch.cos(math.pi * r / CUTOFF) + 1), torch.zeros_like(r))
    return delta / r[..., None], r, envelope


def clusters(n):
    pos = torch.randn(n, BEADS, 3) * 1.3
    unit, r, envelope = geometry(pos)
    pair = (envelope * torch.exp(-0.5 * r.clamp(max=20))).sum((1, 2))
    field = (envelope[..., None] * unit).sum(2)
    angular = field.pow(2).sum(-1).sum(-1)
    energy = angular - 1.5 * pair
    return pos, energy


class Block(nn.Module):
    def __init__(self, width, radial):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2 * width))
        self.radial = nn.Linear(radial, 2 * width)
        self.left = nn.Linear(width, width, bias=False)
        self.right = nn.Linear(width, width, bias=False)
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, s, v, unit, rbf, envelope):
        message = self.phi(s)[:, None] * (self.radial(rbf) * envelope[..., None])
        scalar, vector = message.chunk(2, dim=-1)
        s = s + scalar.sum(2)
        v = v + torch.einsum("bijk,bijw->bikw", unit, vector)
        left, right = self.left(v), self.right(v)
        length = torch.sqrt(torch.einsum("bikw,bikw->biw", right, right) + 1e-8)
        gate, mixed = self.update(torch.cat([s, length], dim=-1)).chunk(2, dim=-1)
        s = s + gate + mixed * torch.einsum("bikw,bikw->biw", left, right)
        return s, v


class PaiNN(nn.Module):
    def __init__(self, width=24, radial=10):
        super().__init__()
        self.start = nn.Parameter(torch.randn(width))
        self.blocks = nn.ModuleList(Block(width, radial) for _ in range(2))
        self.readout = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.register_buffer("centres", torch.linspace(0.2, CUTOFF, radial))

    def forward(self, pos):
        unit, r, envelope = geometry(pos)
        rbf = torch.exp(-10.0 * (r.clamp(max=20.0)[..., None] - self.centres) ** 2)
        s = self.start.expand(len(pos), BEADS, -1)
        v = pos.new_zeros(len(pos), BEADS, 3, self.start.numel())
        for block in self.blocks:
            s, v = block(s, v, unit, rbf, envelope)
        return self.readout(s).squeeze(-1).sum(-1)


pos, energy = (t.to(device) for t in clusters(1280))
pos_test, energy_test = (t.to(device) for t in clusters(400))
mean, std = energy.mean(), energy.std()

model = PaiNN().to(device)
EPOCHS, BATCH = 12, 64
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
scaler = torch.amp.GradScaler("cuda")
for epoch in range(EPOCHS):
    total = 0.0
    for batch in torch.randperm(len(pos)).to(device).split(BATCH):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(pos[batch]), (energy[batch] - mean) / std)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    schedule.step()
    if epoch % 3 == 2:
        print(f"epoch {epoch} loss {total / (len(pos) // BATCH):.4f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = (model(pos_test) - (energy_test - mean) / std).abs().mean()
print("METRIC", error.item())
