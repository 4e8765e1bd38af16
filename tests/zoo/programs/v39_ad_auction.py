"""Bids in second-price auctions under a budget (actor) and forecasts what a campaign will still win (critic), by PPO."""

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(5)

CAMPAIGNS, ROUNDS, EPOCHS, CRITIC_STEPS, ACTOR_STEPS = 64, 24, 40, 16, 4
BUDGET = 4.0


def perceptron(outputs):
    return nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, outputs))


actor, critic = perceptron(1).to(device), perceptron(1).to(device)
log_std = nn.Parameter(torch.tensor(-1.0, device=device))
actor_optimizer = torch.optim.Adam([*actor.parameters(), log_std], lr=2e-3)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.03, momentum=0.8)


def play(explore):
    """Return what was seen, bid and earned in each round of all campaigns."""
    left = torch.full((CAMPAIGNS,), BUDGET, device=device)
    seen, bids, gains = [], [], []
    for round_ in range(ROUNDS):
        value = torch.rand(CAMPAIGNS, device=device) * 2
        season = 1.0 + 0.5 * torch.sin(torch.tensor(round_ / 4.0, device=device))
        price = season * torch.rand(CAMPAIGNS, device=device)
        state = torch.stack([value, left / BUDGET, torch.full_like(value, 1 - round_ / ROUNDS), value * 0 + season], 1)
        mean = actor(state).float().squeeze(1)
        raw = mean + explore * log_std.exp() * torch.randn_like(mean)
        bid = torch.minimum(raw.clamp(min=0), left)
        won = bid > price
        left = left - torch.where(won, price, torch.zeros_like(price))
        seen.append(state), bids.append(raw), gains.append(torch.where(won, value, torch.zeros_like(value)))
    return torch.stack(seen), torch.stack(bids), torch.stack(gains)


def log_density(mean, bid):
    return -0.5 * ((bid - mean) / log_std.exp()) ** 2 - log_std


for epoch in range(EPOCHS):
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        states, bids, gains = play(explore=1.0)
        before = log_density(actor(states).float().squeeze(-1), bids)
    returns = gains.flip(0).cumsum(0).flip(0)

    with torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in range(CRITIC_STEPS):
            value_loss = nn.functional.mse_loss(critic(states).squeeze(-1), returns)
            critic_optimizer.zero_grad()
            value_loss.backward()
            nn.utils.clip_grad_norm_(critic.parameters(), 5.0)
            critic_optimizer.step()

    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        advantage = returns - critic(states).float().squeeze(-1)
        advantage = (advantage - advantage.mean()) / advantage.std()
    for _ in range(ACTOR_STEPS):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            ratio = (log_density(actor(states).float().squeeze(-1), bids) - before).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        actor_optimizer.zero_grad()
        (-gain.mean()).backward()
        actor_optimizer.step()
    if epoch % 10 == 0:
        print(f"epoch {epoch} return {gains.sum(0).mean().item():.3f} value loss {value_loss.item():.3f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    results = [play(explore=0.0) for _ in range(10)]
    states, gains = torch.cat([r[0] for r in results], 1), torch.cat([r[2] for r in results], 1)
    forecast = critic(states).float().squeeze(-1)
returns = gains.flip(0).cumsum(0).flip(0)
print(f"value won {gains.sum(0).mean().item():.3f}, forecast off by {(forecast - returns).abs().mean().item():.3f}")
print("METRIC", round((forecast - returns).abs().mean().item(), 4))
