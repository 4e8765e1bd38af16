"""Proxy-NCA retrieval with a hand-rolled loss scale (no GradScaler: one static factor is enough)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SCALE = 1024.0
torch.manual_seed(33)
device = "cuda" if torch.cuda.is_available() else "cpu"


class ProxyNCA(nn.Module):
    def __init__(self, classes, dim, alpha=12.0):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(classes, dim))
        self.alpha = alpha

    def forward(self, z, y):
        sim = F.normalize(z, dim=1) @ F.normalize(self.proxies, dim=1).t()
        return F.cross_entropy(self.alpha * sim, y)


embed = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16)).to(device)
criterion = ProxyNCA(12, 16).to(device)
optimizer = torch.optim.SGD([
    {"params": embed.parameters()},
    {"params": criterion.parameters(), "lr": 0.2},
], lr=0.2, momentum=0.9)

MEANS = torch.randn(12, 20)


def sample(n):
    y = torch.randint(0, 12, (n,))
    return (MEANS[y] + 1.1 * torch.randn(n, 20)).to(device), y.to(device)


def unscale(model):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(1.0 / SCALE)


def recall_at_1(n=400):
    with torch.no_grad():
        x, y = sample(n)
        z = F.normalize(embed(x), dim=1)
        sim = z @ z.t() - 2 * torch.eye(n, device=device)
        return (y[sim.argmax(1)] == y).float().mean().item()


for step in range(150):
    x, y = sample(64)
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        loss = criterion(embed(x), y)
    (loss * SCALE).backward()
    unscale(embed)
    everything = [p for g in optimizer.param_groups for p in g["params"]]
    nn.utils.clip_grad_norm_(everything, 1.0)
    optimizer.step()
    if step % 50 == 49:
        print(f"{step + 1} loss {loss.item():.4f} recall@1 {recall_at_1():.3f}")
