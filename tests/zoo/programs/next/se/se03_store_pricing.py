"""Prices for a chain of stores by policy gradient with a learned baseline."""
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, PRICES, STEPS, BATCH = 10, 8, 300, 256
UNIT = 1e6  # the baseline predicts in millions, the books are kept in cents

price_of = torch.linspace(0.5, 3.0, PRICES, device=device)
taste = torch.randn(FEATURES, 2, device=device) / FEATURES**0.5


def revenue(context, prices):
    """Expected revenue of a week in cents."""
    level, slope = (context @ taste).unbind(-1)
    demand = torch.sigmoid(3.0 + 1.5 * level - (1.5 + slope.exp()).clamp(max=5) * (prices - 0.3))
    return 2e6 * demand * prices


def visits(count):
    return torch.randn(count, FEATURES, device=device)


def mlp(outputs):
    return nn.Sequential(
        nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    ).to(device)


class DynamicScale:
    def __init__(self, start=2.0**12, interval=500):
        self.value, self.interval, self.clean = start, interval, 0

    def unscale(self, params):
        for p in params:
            p.grad.div_(self.value)
        return all(bool(torch.isfinite(p.grad).all()) for p in params)

    def update(self, finite):
        self.clean = self.clean + 1 if finite else 0
        if not finite:
            self.value /= 2
        elif self.clean % self.interval == 0:
            self.value *= 2


actor, critic = mlp(PRICES), mlp(1)
actor_opt = torch.optim.Adam(actor.parameters(), lr=2e-3)
critic_opt = torch.optim.Adam(critic.parameters(), lr=3e-3)
actor_scale = DynamicScale()
critic_scale = actor_scale

for step in range(STEPS):
    context = visits(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        logits = actor(context)
        baseline = critic(context).squeeze(-1).float() * UNIT
    choice = Categorical(logits=logits.float())
    action = choice.sample()
    reward = revenue(context, price_of[action]) + 2e5 * torch.randn(BATCH, device=device)
    advantage = (reward - baseline).detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1.0)
    actor_loss = -(choice.log_prob(action) * advantage).mean() - 0.01 * choice.entropy().mean()
    critic_loss = (baseline - reward).pow(2).mean()

    actor_opt.zero_grad()
    critic_opt.zero_grad()
    (actor_loss * actor_scale.value).backward()
    (critic_loss * critic_scale.value).backward()
    actor_ok = actor_scale.unscale(list(actor.parameters()))
    critic_ok = critic_scale.unscale(list(critic.parameters()))
    if actor_ok:
        actor_opt.step()
    if critic_ok:
        critic_opt.step()
    if critic_scale is actor_scale:
        actor_scale.update(actor_ok and critic_ok)
    else:
        actor_scale.update(actor_ok)
        critic_scale.update(critic_ok)
    if step % 50 == 0:
        print(f"step {step} revenue {reward.mean().item() / 1e6:.3f}M")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    context = visits(4096)
    chosen = price_of[actor(context).float().argmax(-1)]
table = torch.stack([revenue(context, p.expand(4096)) for p in price_of], -1)
regret = 1 - revenue(context, chosen).sum() / table.max(-1).values.sum()
print(f"metric {regret.item():.4f}")
