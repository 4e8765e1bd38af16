"""Two-view contrastive pre-training, then a nearest-neighbour probe. The loss scale is our own."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(23)
device = "cuda" if torch.cuda.is_available() else "cpu"

CLASSES, DIM, CONTENT = 12, 40, 6
prototypes = torch.randn(CLASSES, CONTENT)
basis = torch.linalg.qr(torch.randn(DIM, DIM)).Q


class LossScaler:
    """Dynamic loss scale: doubles after `window` good steps, halves after a bad one."""

    def __init__(self, init=2.0**16, factor=2.0, window=15):
        self.value, self.factor, self.window = init, factor, window
        self.good = 0

    def step(self, loss, optimizer):
        """Scale, go backward, unscale and step. Return whether the step was taken."""
        optimizer.zero_grad(set_to_none=True)
        scaled = loss.float() * self.value
        if not torch.isfinite(scaled):
            self.value /= self.factor
            self.good = 0
            return False
        scaled.backward()
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.div_(self.value)
        optimizer.step()
        self.good += 1
        if self.good % self.window == 0:
            self.value *= self.factor
        return True


def sample(labels):
    """Return two views of the same items: the content stays, everything else changes."""
    content = prototypes[labels] + 0.6 * torch.randn(len(labels), CONTENT)
    views = []
    for _ in range(2):
        style = 1.5 * torch.randn(len(labels), DIM - CONTENT)
        noisy = content + 0.2 * torch.randn_like(content)
        views.append((torch.cat([noisy, style], 1) @ basis).to(device))
    return views


def info_nce(a, b, temperature=0.2):
    z = F.normalize(torch.cat([a, b]), dim=1)
    logits = z @ z.t() / temperature
    logits = logits.masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), -1e4)
    partner = torch.arange(len(z), device=z.device).roll(len(a))
    return F.cross_entropy(logits, partner)


def probe(backbone):
    """Return the accuracy of the five nearest neighbours."""
    with torch.no_grad():
        bank_y, query_y = torch.randint(CLASSES, (600,)), torch.randint(CLASSES, (400,))
        bank = F.normalize(backbone(sample(bank_y)[0]), dim=1)
        query = F.normalize(backbone(sample(query_y)[0]), dim=1)
        votes = bank_y[(query @ bank.t()).topk(5, dim=1).indices.cpu()]
        return (votes.mode(1).values == query_y).float().mean().item()


backbone = nn.Sequential(nn.Linear(DIM, 96), nn.ReLU(), nn.Linear(96, 32)).to(device)
projector = nn.Sequential(nn.ReLU(), nn.Linear(32, 32)).to(device)
optimizer = torch.optim.AdamW([*backbone.parameters(), *projector.parameters()], lr=3e-3, weight_decay=1e-4)
scaler = LossScaler()
taken = 0
for step in range(250):
    left, right = sample(torch.randint(CLASSES, (64,)))
    with torch.autocast("cuda", dtype=torch.float16):
        loss = info_nce(projector(backbone(left)), projector(backbone(right)))
    taken += scaler.step(loss, optimizer)
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.3f} scale {scaler.value:g}")
print(f"{taken} steps taken")
print(f"metric {probe(backbone):.4f}")
