"""Online forecast of the volatility of 64 currency pairs from one-minute returns."""

import math

import torch
from torch import nn

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
ASSETS, BARS, WINDOW, BURN, TEST = 64, 2000, 8, 200, 400


def simulate():
    """Return log-normal stochastic volatility with a level of its own for each pair, and returns."""
    level = torch.empty(ASSETS).uniform_(math.log(3e-5), math.log(4e-4))
    log_vol, path = torch.zeros(ASSETS), []
    market = torch.zeros(1)
    for _ in range(BARS):
        shock = torch.randn(ASSETS)
        market = 0.995 * market + 0.04 * torch.randn(1)
        log_vol = 0.98 * log_vol + 0.08 * shock
        path.append(level + log_vol + market)
    sigma = torch.stack(path).exp()
    return sigma, sigma * torch.randn_like(sigma)


class RiskState:
    """What is kept of each pair between bars: an exponentially weighted variance and recent scores."""

    def __init__(self, decay=0.97):
        self.decay = decay
        self.variance = torch.full((ASSETS,), 2e-8, dtype=torch.float16, device=device)
        self.scores = torch.zeros(ASSETS, WINDOW, dtype=torch.float16, device=device)

    def base(self):
        return self.variance.float() + 1e-10

    def push(self, r):
        z = (r / self.base().sqrt()).clamp(-8, 8)
        self.scores = torch.cat([self.scores[:, 1:], z[:, None].to(self.scores.dtype)], 1)
        self.variance.mul_(self.decay).add_((1 - self.decay) * r * r)


class Forecaster(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(2 * WINDOW, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(self, scores):
        x = torch.cat([scores, scores.abs() - 0.8], 1)
        return self.body(x).squeeze(1)


sigma, returns = (one.to(device) for one in simulate())
state, net = RiskState(), Forecaster().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")

errors, running = [], 0.0
for t in range(BARS):
    now = returns[t]
    base = state.base()
    with torch.autocast("cuda", dtype=torch.float16):
        correction = net(state.scores)
    log_variance = base.log() + correction.float().clamp(-6, 6)
    loss = (log_variance + now * now / log_variance.exp()).mean()
    if t >= BARS - TEST:
        errors.append((0.5 * log_variance.detach() - sigma[t].log()).square().mean().item())
    if t >= BURN:
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    state.push(now)
    running = 0.98 * running + 0.02 * loss.item()
    if t % 400 == 399:
        print(f"bar {t + 1} loss {running:.3f}")

print(f"held-out mean squared error of log volatility over {TEST} bars")
print("METRIC", round(sum(errors) / len(errors), 4))
