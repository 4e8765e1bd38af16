"""Streaming classification of fruit on a sorting line: a fixed backbone and class means that are updated per item."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"
BASE, KINDS, DIM, WIDTH, DAYS, PER_DAY = 20, 6, 32, 48, 6, 2400

mixing = torch.randn(DIM, DIM) / DIM**0.5
base_centres = torch.randn(BASE, DIM)
kinds = torch.randn(KINDS, DIM) * 0.6
ripeness = torch.randn(DAYS, KINDS, DIM) * 0.7


def spectra(centre, noise=0.6):
    return torch.tanh((centre + noise * torch.randn_like(centre)) @ mixing) + 0.05 * torch.randn_like(centre)


def fruit(day, n):
    y = torch.randint(KINDS, (n,))
    return spectra(kinds[y] + ripeness[day, y]).to(device), y.to(device)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(DIM, 96), nn.ReLU(), nn.Linear(96, WIDTH), nn.ReLU())
        self.head = nn.Linear(WIDTH, BASE)

    def forward(self, x):
        return self.layers(x)


class StreamingMeans:
    """Nearest class mean; the means follow the stream one item at a time and no item is stored."""

    def __init__(self, like):
        self.mean = torch.zeros(KINDS, like.shape[1], dtype=like.dtype, device=like.device)
        self.seen = [0] * KINDS

    def learn(self, features, labels):
        for z, k in zip(features, labels.tolist()):
            self.seen[k] += 1
            self.mean[k] += (z - self.mean[k]) / self.seen[k]

    def classify(self, features):
        return torch.cdist(features.float(), self.mean.float()).argmin(1)


backbone = Backbone().to(device)
optimizer = torch.optim.Adam(backbone.parameters(), lr=2e-3)
for step in range(500):
    y = torch.randint(BASE, (128,))
    x = spectra(base_centres[y]).to(device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(backbone.head(backbone(x)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 99:
        print(f"base session, step {step + 1}: loss {loss.item():.3f}")

backbone.eval().requires_grad_(False)
held = [fruit(day, 1000) for day in range(DAYS)]


def features(x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return backbone(x)


line = StreamingMeans(features(held[0][0][:1]))
for day in range(DAYS):
    for _ in range(PER_DAY // 200):
        x, y = fruit(day, 200)
        line.learn(features(x), y)
    errors = [(line.classify(features(x)) != y).float().mean().item() for x, y in held]
    print(f"day {day + 1}: error so far {sum(errors[: day + 1]) / (day + 1):.3f}, items {sum(line.seen)}")
print(f"METRIC {sum(errors) / DAYS:.4f}")
