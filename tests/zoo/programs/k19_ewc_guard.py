"""Continual learning for a ward monitor: learn site A, then site B with an elastic penalty around the site-A solution."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
scaler_kw = dict(init_scale=256.0, growth_interval=10_000)


def vitals(n, gen, site):
    x = torch.randn(n, 16, generator=gen)
    direction = torch.zeros(16)
    if site == "A":
        direction[:8] = torch.tensor([1.0, -1.2, 1.4, -0.8, 2.0, 1.5, -1.7, 1.1])
        x[:, 8:] *= 0.2
    else:
        direction[8:] = torch.tensor([-1.0, 1.8, 1.3, -1.6, 1.2, -2.0, 0.9, 1.4])
        direction[:2] = torch.tensor([-0.8, 0.8])
        x[:, :8] *= 0.6
    y = (x @ direction + 0.5 * torch.tanh(x[:, 0] * x[:, 9]) > 0).long()
    return x.to(device), y.to(device)


class Monitor(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.alarm = nn.Linear(64, 2)

    def forward(self, x):
        return self.alarm(self.features(x))


class ElasticPenalty:
    """Importance and anchor of each parameter; kept compact since one pair is stored per site."""

    def __init__(self, model, strength):
        self.strength = strength
        self.anchor = {n: p.detach().clone() for n, p in model.named_parameters()}
        self.importance = {n: torch.zeros_like(p, dtype=torch.float16) for n, p in model.named_parameters()}

    def estimate(self, model, loader, batches):
        for _ in range(batches):
            x, y = loader()
            model.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                out = model(x)
            F.cross_entropy(out.float(), y).backward()
            for n, p in model.named_parameters():
                self.importance[n] += (p.grad.to(torch.float16) ** 2) / batches
        model.zero_grad()
        return self

    def __call__(self, model):
        total = 0.0
        for n, p in model.named_parameters():
            total = total + (self.importance[n].float() * (p - self.anchor[n]) ** 2).sum()
        return 0.5 * self.strength * total


def train(model, loader, steps, penalty=None, tag=""):
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler(device, **scaler_kw)
    for s in range(steps):
        x, y = loader()
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(model(x).float(), y)
        if penalty is not None:
            loss = loss + penalty(model)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if s % 20 == 19:
            print(f"{tag} step {s + 1} loss {loss.item():.4f}")


def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


torch.manual_seed(1)
gen = torch.Generator().manual_seed(1)
model = Monitor().to(device)
test_a, test_b = (vitals(4000, torch.Generator().manual_seed(50 + k), s) for k, s in enumerate("AB"))
train(model, lambda: vitals(512, gen, "A"), 60, tag="site A")
print(f"after A: A {accuracy(model, *test_a):.3f}")
guard = ElasticPenalty(model, strength=2e6).estimate(model, lambda: vitals(4096, gen, "A"), batches=10)
train(model, lambda: vitals(512, gen, "B"), 160, penalty=guard, tag="site B")
print(f"after B: A {accuracy(model, *test_a):.3f}  B {accuracy(model, *test_b):.3f}")
