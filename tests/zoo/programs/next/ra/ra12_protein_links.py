"""Affinity of protein pairs from learnt node vectors and sequence features; nodes and network are optimised apart."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(43)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.float16
PROTEINS, SEQ, DIM, BATCH, STEPS = 160, 20, 12, 256, 220

sequence = torch.randn(PROTEINS, SEQ)
pocket = torch.randn(PROTEINS, 3)
mixing = torch.randn(SEQ, 3) / SEQ**0.5


def pairs(n):
    a, b = torch.randint(0, PROTEINS, (n,)), torch.randint(0, PROTEINS, (n,))
    left, right = sequence[a] @ mixing + pocket[a], sequence[b] @ mixing + pocket[b]
    affinity = 0.5 * (left * right).sum(1) + 0.1 * torch.randn(n)
    return a.to(device), b.to(device), affinity.to(device)


class PairModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.register_buffer("sequence", sequence.to(amp_dtype))  # fixed descriptors, kept compact
        self.nodes = nn.Embedding(PROTEINS, DIM)
        nn.init.normal_(self.nodes.weight, std=0.3)
        self.project = nn.Linear(SEQ + DIM, width)
        self.head = nn.Sequential(nn.Linear(3 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def side(self, index):
        return torch.tanh(self.project(torch.cat([self.sequence[index], self.nodes(index)], dim=1)))

    def forward(self, a, b):
        left, right = self.side(a), self.side(b)
        return self.head(torch.cat([left + right, left * right, (left - right).abs()], dim=1)).squeeze(-1)


class SharedScale:
    """One dynamic loss scale for several optimizers; all of them step, or none."""

    def __init__(self, optimizers, scale=2.0**9, interval=500):
        self.optimizers, self.scale, self.interval = optimizers, scale, interval
        self.good, self.skipped = 0, 0

    @torch.no_grad()
    def step(self):
        grads = [p.grad for o in self.optimizers for g in o.param_groups for p in g["params"] if p.grad is not None]
        for grad in grads:
            grad.div_(self.scale)
        if all(grad.isfinite().all() for grad in grads):
            for optimizer in self.optimizers:
                optimizer.step()
            self.good += 1
            if self.good % self.interval == 0:
                self.scale *= 2
        else:
            self.skipped += 1
            self.scale /= 2


model = PairModel().to(device)
network = [*model.project.parameters(), *model.head.parameters()]
opt_nodes = torch.optim.Adam(model.nodes.parameters(), lr=2e-2)
opt_network = torch.optim.AdamW(network, lr=4e-3)
loss_scale = SharedScale([opt_nodes, opt_network])

for step in range(STEPS):
    a, b, affinity = pairs(BATCH)
    model.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=amp_dtype):
        loss = F.mse_loss(model(a, b), affinity)
    (loss * loss_scale.scale).backward()
    loss_scale.step()
    if step % 55 == 54:
        print(f"step {step + 1} loss {loss.item():.4f} scale {loss_scale.scale:g} skipped {loss_scale.skipped}")

a, b, affinity = pairs(4096)
with torch.no_grad(), torch.autocast("cuda", dtype=amp_dtype):
    pred = model(a, b)
print(f"metric {math.sqrt(F.mse_loss(pred.float(), affinity).item()):.4f}")
