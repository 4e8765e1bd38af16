"""Reward model on preference pairs (Bradley-Terry) in float16 with a loss scale of our own, after an older trainer."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(29)
device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, LENGTH, WIDTH, BATCH, STEPS = 200, 10, 24, 64, 400

worth = torch.randn(VOCAB, device=device)
partner = torch.randn(VOCAB, VOCAB, device=device) * 0.5


def quality(tokens):
    return worth[tokens].mean(1) * 3 + partner[tokens[:, :-1], tokens[:, 1:]].mean(1)


def pairs(n):
    a = torch.randint(0, VOCAB, (n, LENGTH), device=device)
    b = torch.randint(0, VOCAB, (n, LENGTH), device=device)
    swap = (torch.rand(n, device=device) < torch.sigmoid(3 * (quality(b) - quality(a))))[:, None]
    return torch.where(swap, b, a), torch.where(swap, a, b)


class RewardModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.GELU())
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens)).mean(1)).squeeze(1)


class LossScale:
    """Doubles when all went well for a while, halves on overflow."""

    def __init__(self, value=2.0**14, patience=40):
        self.value, self.patience, self.good = value, patience, 0

    def unscale(self, loss, parameters):
        """Divide the gradients; say whether the step may be taken."""
        finite = bool(torch.isfinite(loss * self.value))
        for p in parameters:
            p.grad.div_(self.value)
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.value /= 2
        elif self.good >= self.patience:
            self.value, self.good = self.value * 2, 0
        return finite


model = RewardModel().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
scale = LossScale()
skipped = 0
for step in range(STEPS):
    chosen, rejected = pairs(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        margin = model(chosen) - model(rejected)
        loss = -F.logsigmoid(margin.float()).mean()
    optimizer.zero_grad()
    (loss * scale.value).backward()
    if scale.unscale(loss.detach(), list(model.parameters())):
        optimizer.step()
    else:
        skipped += 1
    if step % 80 == 0:
        print(f"step {step} loss {loss.item():.3f} scale {scale.value:.0f} skipped {skipped}")

with torch.no_grad():
    chosen, rejected = pairs(4000)
    agree = (model(chosen) > model(rejected)).float().mean()
print(f"METRIC {agree:.4f}")
