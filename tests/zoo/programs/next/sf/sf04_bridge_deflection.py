"""Deflection of a bridge deck (metres) from strain readings; hidden matrices by Muon, the rest by AdamW."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"

GAUGES, POINTS, STEPS, BATCH = 24, 8, 220, 256
MM = 1e-3  # the network works in millimetres, labels are in metres


def orthogonalize(g, rounds=5):
    """Newton-Schulz iteration of Muon, in half precision for the tensor cores."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.to(torch.float16)
    x = x / (x.norm() + 1e-7)
    flip = x.size(0) > x.size(1)
    x = x.T if flip else x
    for _ in range(rounds):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.T if flip else x).float()


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                buf = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp(buf, group["momentum"])
                p.add_(orthogonalize(g), alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


class Deck(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.enter = nn.Linear(GAUGES, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.leave = nn.Linear(width, POINTS)

    def forward(self, strain):
        h = F.silu(self.enter(strain))
        for layer in self.hidden:
            h = h + F.silu(layer(h))
        return self.leave(h).float() * MM


def loads(n):
    """A few lorries on the deck, the strain that the gauges see, and the deflection of each point."""
    place, weight = torch.rand(n, 4, 1), torch.rand(n, 4, 1) * (torch.rand(n, 4, 1) < 0.6)
    at = torch.linspace(0, 1, GAUGES)
    strain = (weight * torch.exp(-((at - place) ** 2) / 0.006)).sum(1)
    points = torch.linspace(0.1, 0.9, POINTS)
    sag = (weight * torch.sin(torch.pi * place) * torch.sin(torch.pi * points) * torch.exp(-(points - place).abs())).sum(1)
    sag = 1.6 * torch.tanh(sag) + 0.3 * torch.sin(3 * sag)  # bearings stiffen
    strain = strain + 0.01 * torch.randn_like(strain)
    return strain.to(device), (sag * MM).to(device)


model = Deck().to(device)
matrices = [layer.weight for layer in model.hidden]
others = [p for p in model.parameters() if all(p is not m for m in matrices)]
opt_muon = Muon(matrices, lr=0.02)
opt_adam = torch.optim.AdamW(others, lr=3e-3, eps=1e-12)
scheds = [torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 1 - s / STEPS) for opt in (opt_muon, opt_adam)]
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    strain, sag = loads(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(strain), sag)
    opt_muon.zero_grad(set_to_none=True)
    opt_adam.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt_muon)
    scaler.step(opt_adam)
    scaler.update()
    for sched in scheds:
        sched.step()

model.eval()
strain, sag = loads(4000)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    error = F.mse_loss(model(strain), sag).sqrt() / sag.std()
print(f"metric {error.item():.4f}")
