"""Card fraud scoring: amount, merchant category and a periodic encoding of the transaction time."""
import math

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(2)


class Time2Vec(nn.Module):
    """Sines of the time (hours since the portfolio began) with known periods and learned shifts."""

    def __init__(self, periods=(24.0, 12.0, 168.0), shifts=2):
        super().__init__()
        self.angle = nn.Linear(1, len(periods) * shifts)
        omega = torch.tensor(periods).repeat_interleave(shifts)
        with torch.no_grad():
            self.angle.weight.copy_((2 * math.pi / omega)[:, None])
            self.angle.bias.uniform_(-math.pi, math.pi)
        self.angle.weight.requires_grad_(False)

    def forward(self, hours):
        return torch.sin(self.angle(hours.unsqueeze(-1)))


class FraudScorer(nn.Module):
    def __init__(self, categories=12, width=32):
        super().__init__()
        self.category = nn.Embedding(categories, 8)
        self.clock = Time2Vec()
        self.amount = nn.Sequential(nn.Linear(1, 8), nn.ReLU())
        self.trunk = nn.Sequential(nn.Linear(8 + 6 + 8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.score = nn.Linear(width, 1)

    def forward(self, log_amount, category, hours):
        parts = [self.category(category), self.clock(hours), self.amount(log_amount.unsqueeze(-1))]
        return self.score(self.trunk(torch.cat(parts, dim=-1))).squeeze(-1)


def transactions(n, g):
    hours = torch.rand(n, generator=g) * 24 * 730
    category = torch.randint(12, (n,), generator=g)
    log_amount = torch.randn(n, generator=g)
    night = torch.cos(2 * math.pi * (hours - 3.0) / 24)
    sign = torch.where(category % 3 == 0, -1.0, 1.0)
    logit = -3.0 + 2.8 * night * sign + 0.7 * log_amount
    label = (torch.rand(n, generator=g) < torch.sigmoid(logit)).float()
    return [t.to(device) for t in (log_amount, category, hours, label)]


def auc(score, label):
    order = score.argsort()
    ranks = torch.empty_like(score)
    ranks[order] = torch.arange(1, len(score) + 1, device=score.device, dtype=score.dtype)
    pos = label.sum()
    return ((ranks[label > 0].sum() - pos * (pos + 1) / 2) / (pos * (len(label) - pos))).item()


g = torch.Generator().manual_seed(8)
train, valid = transactions(20000, g), transactions(5000, g)
net = FraudScorer().to(device)
opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0, device=device))
for step in range(400):
    idx = torch.randint(len(train[0]), (256,), generator=g)
    log_amount, category, hours, label = (column[idx] for column in train)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(net(log_amount, category, hours), label)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    if (step + 1) % 100 == 0:
        print(f"step {step + 1} bce {loss.item():.4f}")
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    scores = net(*valid[:3]).float()
print(f"valid auc {auc(scores, valid[3]):.4f}")
