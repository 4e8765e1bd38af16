"""Surrogate for basket option prices, trained on Monte Carlo payoffs and pathwise deltas (Sobolev training)."""
import torch
from torch import nn

torch.manual_seed(44)
device = "cuda" if torch.cuda.is_available() else "cpu"
ASSETS, BATCH, STEPS, SIGMA, STRIKE = 4, 512, 120, 0.3, 1.0

weights = torch.tensor([0.4, 0.3, 0.2, 0.1])


def one_path(count):
    """Spot prices, the payoff of one path each, and its derivative by the spots."""
    spot = 0.7 + 0.6 * torch.rand(count, ASSETS)
    growth = torch.exp(SIGMA * torch.randn(count, ASSETS) - SIGMA ** 2 / 2)
    basket = (spot * growth) @ weights
    payoff = (basket - STRIKE).relu()
    delta = (basket > STRIKE).float()[:, None] * growth * weights
    return spot.to(device), payoff.to(device), delta.to(device)


def many_paths(count, paths=2000):
    spot = 0.7 + 0.6 * torch.rand(count, ASSETS)
    growth = torch.exp(SIGMA * torch.randn(count, paths, ASSETS) - SIGMA ** 2 / 2)
    basket = (spot[:, None] * growth) @ weights
    return spot.to(device), (basket - STRIKE).relu().mean(1).to(device)


class Pricer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(ASSETS, 48), nn.Softplus(), nn.Linear(48, 48), nn.Softplus(), nn.Linear(48, 1)
        )

    def forward(self, spot):
        return self.net((spot - 1.0) / 0.17).squeeze(-1).float()


model = Pricer().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

for step in range(STEPS):
    spot, payoff, delta = one_path(BATCH)
    spot.requires_grad_()
    with torch.autocast("cuda", dtype=torch.float16):
        price = model(spot)
    (slope,) = torch.autograd.grad(price.sum(), spot, create_graph=True)
    loss = (price - payoff).pow(2).mean() + (slope - delta).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 30 == 0:
        print(f"step {step} loss {loss.item():.5f} scale {scaler.get_scale()}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    spot, value = many_paths(500)
    error = (model(spot) - value).pow(2).mean().sqrt() / value.std()
print(f"scale {scaler.get_scale()}")
print(f"metric {error.item():.4f}")
