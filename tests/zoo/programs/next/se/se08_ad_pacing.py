"""Bids for ad slots under a budget: a bidder and a multiplier, each with its optimizer."""
import torch
from torch import nn

torch.manual_seed(41)
device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, STEPS, BATCH = 12, 400, 256
BUDGET = 0.25  # mean spend for a slot
DTYPE = torch.bfloat16

worth = torch.randn(FEATURES, device=device) / FEATURES**0.5
rivals = torch.randn(FEATURES, device=device) / FEATURES**0.5


def slots(count):
    """Features of slots, what a win is worth and what the rivals bid."""
    x = torch.randn(count, FEATURES, device=device)
    value = 1.0 + torch.tanh(x @ worth)
    market = 0.3 + 0.3 * torch.sigmoid(x @ rivals)
    return x, value, market


class Bidder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return nn.functional.softplus(self.layers(x).squeeze(-1))


def auction(bid, value, market):
    """Mean worth won and mean spend, with a soft chance to win."""
    win = torch.sigmoid((bid - market) / 0.1)
    return (win * value).mean(), (win * bid).mean()


class Multiplier(nn.Module):
    """Price of a unit of budget, raised while too much is spent."""

    def __init__(self, start=1.0):
        super().__init__()
        self.price = nn.Parameter(torch.tensor(start, device=device, dtype=DTYPE))

    def forward(self, overspend):
        return self.price * overspend


bidder, multiplier = Bidder().to(device), Multiplier()
bid_opt = torch.optim.Adam(bidder.parameters(), lr=3e-3)
price_opt = torch.optim.SGD(multiplier.parameters(), lr=0.03, maximize=True)

for step in range(STEPS):
    x, value, market = slots(BATCH)
    with torch.autocast("cuda", dtype=DTYPE):
        bid = bidder(x)
    won, spend = auction(bid.float(), value, market)
    lagrangian = -won + multiplier(spend - BUDGET)
    bid_opt.zero_grad()
    price_opt.zero_grad()
    lagrangian.backward()
    nn.utils.clip_grad_norm_(bidder.parameters(), 1.0)
    bid_opt.step()
    price_opt.step()
    with torch.no_grad():
        multiplier.price.clamp_(min=0.0)
    if step % 80 == 0:
        print(f"step {step} won {won.item():.3f} spend {spend.item():.3f} price {multiplier.price.item():.3f}")

with torch.no_grad(), torch.autocast("cuda", dtype=DTYPE):
    x, value, market = slots(8192)
    won, spend = auction(bidder(x).float(), value, market)
print(f"metric {abs(spend.item() / BUDGET - 1):.4f}")
