"""Few-shot transfer: a network learns one survey, then a second one from few shots while anchored to the first."""
import os

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp = os.environ.get("FP32") != "1"
DIM, CLASSES = 32, 8
centers = torch.randn(CLASSES, DIM)
moved = centers[torch.randperm(CLASSES)] * 0.5 + 0.9 * torch.randn(CLASSES, DIM)


def survey(which, n):
    y = torch.randint(CLASSES, (n,))
    return ((centers, moved)[which][y] + 0.8 * torch.randn(n, DIM)).to(device), y.to(device)


model = nn.Sequential(nn.Linear(DIM, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, CLASSES)).to(device)
scaler = torch.amp.GradScaler("cuda", enabled=amp)


def fit(batches, lr, anchor=None, strength=0.0):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for x, y in batches:
        with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if anchor is not None:
            with torch.no_grad():
                for p, start in zip(model.parameters(), anchor):
                    p.grad.add_(p - start, alpha=strength)
        scaler.step(optimizer)
        scaler.update()


def accuracy(which):
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16, enabled=amp):
        x, y = survey(which, 2000)
        hit = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return hit


fit((survey(0, 128) for _ in range(100)), lr=0.05)
print(f"first survey: {accuracy(0):.3f} before transfer")
support = survey(1, 40)
anchor = [p.detach().clone() for p in model.parameters()]
fit((support for _ in range(100)), lr=0.05, anchor=anchor, strength=0.5)
old, new = accuracy(0), accuracy(1)
print(f"part: first {old:.3f} second {new:.3f}")
drift = sum((p - a).pow(2).sum() for p, a in zip(model.parameters(), anchor)).sqrt().item()
print(f"part: distance from the anchor {drift:.3f}")
print("metric:", old)
