"""Cox regression on gene expression with 16-bit weights, 32-bit masters and a loss scale of its own."""

import torch
from torch import nn

torch.manual_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"
GENES, PATHWAYS = 200, 12

member = (torch.rand(PATHWAYS, GENES) < 0.08).float()


def tumours(n):
    """Expression driven by pathways; three of them act on the hazard, two of them together."""
    pathway = torch.randn(n, PATHWAYS)
    genes = pathway @ member + 0.7 * torch.randn(n, GENES)
    risk = 1.2 * pathway[:, 0] - 0.9 * pathway[:, 1] + 1.0 * pathway[:, 2].clamp(min=0)
    time = torch.distributions.Exponential(torch.exp(risk)).sample()
    censor = torch.distributions.Exponential(torch.full((n,), 0.3)).sample()
    return [t.to(device) for t in (genes, torch.minimum(time, censor), (time <= censor).float())]


def partial_likelihood(risk, time, died):
    """Negative log partial likelihood per death (Breslow)."""
    order = time.argsort(descending=True)
    risk, died = risk.float()[order], died[order]
    return -((risk - risk.logcumsumexp(0)) * died).sum() / died.sum()


class Masters:
    """Keeps the weights in 32 bits; the loss scale halves on overflow and doubles after `every` good steps."""

    def __init__(self, model, lr, scale=2.0**24, every=100):
        self.half = list(model.parameters())
        self.full = [p.detach().float().clone().requires_grad_() for p in self.half]
        self.optimizer = torch.optim.AdamW(self.full, lr=lr, weight_decay=0.02)
        self.scale, self.every, self.good, self.skipped = scale, every, 0, 0

    def step(self, loss):
        for p in self.half:
            p.grad = None
        (loss * self.scale).backward()
        for p, q in zip(self.half, self.full):
            q.grad = p.grad.float() / self.scale
        norm = nn.utils.clip_grad_norm_(self.full, 1.0)
        if not torch.isfinite(norm):
            self.scale, self.good, self.skipped = self.scale / 2, 0, self.skipped + 1
            return
        self.optimizer.step()
        with torch.no_grad():
            for p, q in zip(self.half, self.full):
                p.copy_(q)
        self.good += 1
        if self.good % self.every == 0:
            self.scale *= 2


genes, time, died = tumours(3000)
test_genes, test_time, test_died = tumours(1000)
mean, std = genes.mean(0), genes.std(0)
genes, test_genes = ((g - mean) / std for g in (genes, test_genes))
model = nn.Sequential(
    nn.Linear(GENES, 64), nn.LayerNorm(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
).to(device).half()
masters = Masters(model, lr=1e-3)
for step in range(500):
    rows = torch.randint(0, len(genes), (256,), device=device)
    risk = model(genes[rows].to(torch.half))[:, 0]
    loss = partial_likelihood(risk, time[rows], died[rows])
    masters.step(loss)
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f} skipped {masters.skipped}")

model.eval()
with torch.no_grad():
    risk = model(test_genes.to(torch.half))[:, 0].float()
earlier = (test_time[:, None] < test_time[None]) & (test_died[:, None] > 0)
print(f"METRIC {((risk[:, None] > risk[None]).float() * earlier).sum().item() / earlier.sum().item():.4f}")
