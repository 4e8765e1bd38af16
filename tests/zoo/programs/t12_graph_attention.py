"""Finds rare fraud accounts in a payment graph with dense graph attention in fp16."""

import torch
from torch import nn

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
NODES, DIM, WIDTH, HEADS, STEPS = 256, 12, 64, 4, 160


def payments():
    """Return features, adjacency (with hubs) and labels; about 6 % of the accounts are mules near few sources."""
    popular = torch.empty(NODES).exponential_().pow(1.5)
    chance = popular[:, None] * popular[None]
    edges = torch.rand(NODES, NODES) < (chance * 4 / NODES).clamp(max=0.7)
    edges = edges.triu(1)
    edges = edges | edges.T
    x = torch.randn(NODES, DIM)
    risk = x[:, 0] + 0.6 * x[:, 1] * x[:, 2]
    degree = edges.sum(1).clamp(min=1)
    around = (edges.float() @ risk) / degree.sqrt()
    score = 0.9 * risk + 1.4 * around + 0.25 * torch.randn(NODES)
    label = (score > score.quantile(0.92)).long()
    edges.fill_diagonal_(True)
    return x.to(device), edges.to(device), label.to(device)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.total = nn.Linear(WIDTH, WIDTH)
        self.sharp = nn.Parameter(torch.full((HEADS, 1, 1), 1.0))

    def forward(self, x, edges):
        q, k, v = self.qkv(self.norm(x)).view(NODES, 3, HEADS, -1).permute(1, 2, 0, 3)
        scores = (q @ k.transpose(1, 2)) * (self.sharp.to(q.dtype) / q.shape[-1] ** 0.5)
        scores = scores.masked_fill(~edges, torch.finfo(scores.dtype).min)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(NODES, WIDTH)
        ones = edges.to(v.dtype)
        degree = ones @ torch.ones(NODES, 1, dtype=v.dtype, device=v.device)
        summed = ones @ v.transpose(0, 1).reshape(NODES, WIDTH) / degree.sqrt()
        return x + self.out(mixed) + self.total(summed)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Sequential(nn.Linear(DIM, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.layers = nn.ModuleList([Attention() for _ in range(2)])
        self.gate = nn.Sequential(nn.Linear(WIDTH, 1), nn.Sigmoid())
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 2))

    def forward(self, x, edges):
        h = self.inp(x)
        for layer in self.layers:
            h = layer(h, edges)
        return self.head(h * self.gate(h))


net = Net().to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20, growth_interval=40)
graphs = [payments() for _ in range(20)]
tests = [payments() for _ in range(24)]
weight = torch.tensor([1.0, 6.0], device=device)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
for step in range(STEPS):
    x, edges, label = graphs[step % len(graphs)]
    with torch.autocast("cuda", dtype=torch.float16):
        logits = net(x, edges)
    loss = nn.functional.cross_entropy(logits.float(), label, weight=weight)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 25 == 24:
        print(f"step {step + 1} loss {loss.item():.3f} scale {scaler.get_scale():.0f}")

areas = []
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    for x, edges, label in tests:
        score = net(x, edges).float().diff(dim=1).squeeze(1)
        pairs = score[label == 1][:, None] > score[label == 0][None]
        areas.append(pairs.float().mean().item())
area = sum(areas) / len(areas)
print(f"held-out graphs: area under the ROC curve {area:.4f}")
print("METRIC", round(area, 4))
