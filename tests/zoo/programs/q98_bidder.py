"""Bidding under a spend limit: policy, value model and the price of the budget are learned together."""
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
DIM, BATCH, STEPS = 12, 512, 2500
BUDGET = 0.12  # mean spend per auction


class Market:
    """Second-price auctions; the value of an impression is seen only when it is won."""

    def __init__(self):
        self.wv, self.wp = torch.randn(DIM, device=device) / 3, torch.randn(DIM, device=device) / 4

    def contexts(self, n):
        return torch.randn(n, DIM, device=device)

    def play(self, x, bid):
        value = torch.exp(x @ self.wv) * (0.5 + torch.rand(len(x), device=device))
        price = torch.exp(x @ self.wp + 0.4 * torch.randn(len(x), device=device)) * 0.6
        won = (bid > price).float()
        return value * won, price * won, won


def mlp(out):
    return nn.Sequential(nn.Linear(DIM, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, out)).to(device)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(2)

    def forward(self, x):
        mean, log_std = self.net(x).float().unbind(-1)
        return torch.distributions.Normal(mean - 0.5, log_std.clamp(-2.0, 0.0).exp())


market = Market()
policy, critic = Policy().to(device), mlp(1)
budget_price = nn.Parameter(torch.zeros((), device=device, dtype=torch.bfloat16))
opt_policy = torch.optim.Adam(policy.parameters(), lr=1e-3)
opt_critic = torch.optim.Adam(critic.parameters(), lr=2e-3)
opt_price = torch.optim.Adam([budget_price], lr=2e-3, betas=(0.5, 0.99))

for step in range(STEPS):
    x = market.contexts(BATCH)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        dist = policy(x)
        log_bid = dist.sample()
        value, spend, _ = market.play(x, log_bid.exp())
        reward = value - budget_price.detach().float() * spend
        baseline = critic(x).squeeze(-1).float()
        advantage = reward - baseline.detach()
        loss_policy = -(dist.log_prob(log_bid) * advantage).mean() - 0.01 * dist.entropy().mean()
        loss_critic = nn.functional.huber_loss(baseline, reward)
        loss_price = -(budget_price * (spend.mean() - BUDGET))
    for opt, loss in ((opt_policy, loss_policy), (opt_critic, loss_critic), (opt_price, loss_price)):
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    with torch.no_grad():
        budget_price.clamp_(min=0.0)
    if step % 500 == 0 or step == STEPS - 1:
        print(f"step {step:4d} value {value.mean():.3f} spend {spend.mean():.3f} price {budget_price.item():.3f}")

# A campaign of 40000 auctions that stops when its money is gone.
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    x = market.contexts(40000)
    value, spend, won = market.play(x, policy(x).mean.exp())
active = spend.cumsum(0) <= BUDGET * len(x)
print(f"won {won[active].sum() / len(x):.3f} of all, money lasted for {active.float().mean():.2f} of the campaign")
print(f"METRIC {(value * active).mean().item():.4f}")
