"""Learn to choose one of six prices for a customer from logged features: policy gradient with a learnt baseline."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(7)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.float16
FEATURES, PRICES, BATCH, STEPS = 8, 6, 256, 160
REVENUE_MEAN, REVENUE_STD = 50_000.0, 25_000.0  # cents, from the logs

true_taste = torch.randn(FEATURES, PRICES).to(device) / FEATURES**0.5
price_level = torch.linspace(0.6, 1.4, PRICES).to(device)


def customers(n):
    return torch.randn(n, FEATURES, device=device)


def expected_revenue(x):
    """Revenue in cents of each price for each customer."""
    return 90_000.0 * price_level * torch.sigmoid(2.5 * x @ true_taste - 1.2 * (price_level - 1.0))


def mlp(outputs, width=64):
    return nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs))


actor = mlp(PRICES).to(device)
critic = mlp(1).to(device)
nn.init.zeros_(actor[-1].weight)
opt_actor = torch.optim.Adam(actor.parameters(), lr=4e-3)
opt_critic = torch.optim.Adam(critic.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

for step in range(STEPS):
    x = customers(BATCH)
    with torch.autocast("cuda", dtype=amp_dtype):
        policy = F.softmax(actor(x), dim=1)
        log_policy = F.log_softmax(actor(x), dim=1)
        choice = torch.multinomial(policy.detach(), 1).squeeze(1)
        revenue = expected_revenue(x).gather(1, choice[:, None]).squeeze(1)
        revenue = revenue + 6_000.0 * torch.randn(BATCH, device=device)

        baseline = REVENUE_MEAN + REVENUE_STD * critic(x).squeeze(1)
        error = (revenue - baseline) / REVENUE_STD
        critic_loss = error.square().mean()

        advantage = error.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        log_chosen = log_policy.gather(1, choice[:, None]).squeeze(1)
        entropy = -(policy * log_policy).sum(1).mean()
        actor_loss = -(advantage * log_chosen).mean() - 0.01 * entropy

    opt_critic.zero_grad(set_to_none=True)
    scaler.scale(critic_loss).backward()
    scaler.step(opt_critic)

    opt_actor.zero_grad(set_to_none=True)
    scaler.scale(actor_loss).backward()
    scaler.step(opt_actor)
    scaler.update()
    if step % 40 == 39:
        print(f"step {step + 1} revenue {revenue.mean().item():.1f} scale {scaler.get_scale():g}")

x = customers(4096)
with torch.no_grad(), torch.autocast("cuda", dtype=amp_dtype):
    choice = actor(x).argmax(1)
table = expected_revenue(x)
regret = table.max(1).values - table.gather(1, choice[:, None]).squeeze(1)
print(f"metric {regret.mean().item() / 100:.3f}")
