"""Weakly labelled music tagging: clip-level tags from frame-level evidence (mel frames -> tags -> noisy-or pooling)."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"
FRAMES, MELS, TAGS = 16, 40, 16
COMMON = 8  # genre and mood tags; the others are instruments that are heard now and then

timbre = F.normalize(torch.randn(TAGS, MELS, device=device), dim=1) * 4.5
prior = torch.cat([torch.full((COMMON,), 0.30), torch.full((TAGS - COMMON,), 0.015)]).to(device)


def clips(n, balanced=False):
    """Return mel frames and the tags that are heard somewhere in each clip."""
    chance = torch.full_like(prior, 0.12) if balanced else prior
    tags = (torch.rand(n, TAGS, device=device) < chance).float()
    heard = (torch.rand(n, FRAMES, TAGS, device=device) < 0.3).float()
    heard[torch.arange(n, device=device)[:, None], torch.randint(FRAMES, (n, TAGS), device=device),
          torch.arange(TAGS, device=device)] = 1.0
    frames = (heard * tags[:, None]) @ timbre + torch.randn(n, FRAMES, MELS, device=device)
    return frames, tags


class Tagger(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(MELS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.tag = nn.Linear(width, TAGS)
        with torch.no_grad():  # start each frame at the share of its tag
            self.tag.weight.mul_(0.1)
            self.tag.bias.copy_(torch.logit(prior / (4 * FRAMES)))

    def forward(self, frames):
        active = torch.sigmoid(self.tag(self.body(frames)))
        silent = (1.0 - active).prod(dim=1)
        return 1.0 - silent


def tag_loss(p, target):
    p = p.float().clamp(1e-6, 1 - 1e-6)
    return F.binary_cross_entropy(p, target)


def average_precision(score, label):
    order = score.argsort(descending=True)
    hit = label[order]
    precision = hit.cumsum(0) / torch.arange(1, len(hit) + 1, device=device)
    return ((precision * hit).sum() / hit.sum()).item()


model = Tagger().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
STEPS = 240
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=8e-3, total_steps=STEPS)

for step in range(STEPS):
    frames, tags = clips(80)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        p = model(frames)
    with torch.autocast("cuda", enabled=False):
        loss = tag_loss(p, tags)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if step % 60 == 0:
        print(f"step {step:4d}  loss {loss.item():.4f}")

frames, tags = clips(800, balanced=True)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    p = model(frames).float()
ap = [average_precision(p[:, t], tags[:, t]) for t in range(TAGS)]
print(f"common {sum(ap[:COMMON]) / COMMON:.3f}  instruments {sum(ap[COMMON:]) / (TAGS - COMMON):.3f}")
print("METRIC", round(100 * sum(ap) / TAGS, 2))
