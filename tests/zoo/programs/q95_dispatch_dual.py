"""A policy for a fleet of batteries: arbitrage profit under a limit on daily cycles (primal-dual training)."""

import math

import torch
from torch import nn

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
HORIZON, BATCH, LIMIT = 24, 64, 0.4


def prices(n):
    """Return day-ahead prices of n days, in units of 50 EUR/MWh."""
    hour = torch.arange(HORIZON)
    phase, size = 0.6 * torch.randn(n, 1), (0.5 + 0.2 * torch.randn(n, 1)).clamp(min=0.1)
    shape = -(2 * math.pi * 2 * hour / 24 - 0.9 + phase).cos() + 0.5 * (2 * math.pi * (hour - 14) / 24).cos()
    return (1 + size * shape + 0.12 * torch.randn(n, HORIZON)).to(device)


class Policy(nn.Module):
    """Power of the next hour (charge above zero) from the state of charge, the hour and the prices to come."""

    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(HORIZON + 3, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )
        self.multiplier = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))

    def forward(self, charge, price, hour):
        ahead = torch.cat([price[:, hour:], price[:, :hour] * 0], 1) - price.mean(1, keepdim=True)
        clock = torch.full_like(charge, hour / 24)
        return torch.tanh(self.net(torch.cat([ahead, charge, clock, 1 - clock], 1)).float())


def day(policy, price):
    """Return profit and cycles (turnover of the capacity) of each battery."""
    charge = torch.full((len(price), 1), 0.5, device=device)
    profit, cycles = 0.0, 0.0
    for hour in range(HORIZON):
        power = 0.25 * policy(charge, price, hour)
        moved = torch.minimum(torch.maximum(power, -charge), 1 - charge)
        charge = charge + moved
        cost = price[:, hour : hour + 1]
        profit = profit - 2.0 * moved.square() - cost * torch.where(moved > 0, moved / 0.95, moved * 0.95)
        cycles = cycles + moved.abs() / 2
    return (profit + charge * price.mean(1, keepdim=True)).squeeze(1), cycles.squeeze(1)


policy = Policy().to(device)
actor = torch.optim.Adam(policy.net.parameters(), lr=3e-3)
dual = torch.optim.SGD([policy.multiplier], lr=8e-3, maximize=True)
STEPS = 400
for step in range(STEPS):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        profit, cycles = day(policy, prices(BATCH))
    over = cycles.mean() - LIMIT
    loss = -profit.mean() + policy.multiplier.float().squeeze() * over
    actor.zero_grad()
    dual.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.net.parameters(), 1.0)
    actor.step()
    dual.step()
    with torch.no_grad():
        policy.multiplier.clamp_(min=0.0)
    if step % 40 == 39:
        print(f"step {step + 1} profit {profit.mean():.3f} cycles {cycles.mean():.3f} "
              f"multiplier {policy.multiplier.item():.3f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    profit, cycles = day(policy, prices(1000))
print(f"held-out days: profit {profit.mean():.3f}, cycles {cycles.mean():.3f} (limit {LIMIT})")
print("METRIC", round(max(cycles.mean().item() / LIMIT - 1, 0.0), 4))
