"""Value of a stock of vaccine in a clinic (expiry, demand, weekly orders) by TD learning with a slow target network."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(43)
device = "cuda" if torch.cuda.is_available() else "cpu"
SHELF, GAMMA, BATCH, STEPS, TAU = 20.0, 0.9, 96, 500, 0.02


class Value(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, state):
        return self.net(state).squeeze(-1)


def encode(stock, age):
    return torch.stack([stock / 10 - 1, age - 1, (stock / SHELF) ** 2], -1)


def week(stock, age):
    """One week: patients come, old doses are thrown away, and the clinic orders up to a level."""
    demand = torch.poisson(torch.full_like(stock, 6.0))
    served = torch.minimum(stock, demand)
    left = stock - served
    expired = left * (0.15 * age).clamp(max=1.0)
    reward = 0.3 * served - 0.1 * expired - 0.02 * left
    stock = (left - expired + 5.0).clamp(0.0, SHELF)
    age = (0.6 * age + 0.8 * torch.rand_like(age)).clamp(0.0, 2.0)
    return reward, stock, age


@torch.no_grad()
def follow(target, online, tau):
    for slow, fast in zip(target.parameters(), online.parameters()):
        slow.lerp_(fast.to(slow.dtype), tau)


online = Value().to(device)
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters(), lr=3e-3)

for step in range(STEPS):
    stock, age = SHELF * torch.rand(BATCH), 2 * torch.rand(BATCH)
    reward, next_stock, next_age = week(stock, age)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.no_grad():
            ahead = target(encode(next_stock, next_age).to(device)).float()
        value = online(encode(stock, age).to(device)).float()
    loss = F.smooth_l1_loss(value, reward.to(device) + GAMMA * ahead)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(online.parameters(), 10.0)
    optimizer.step()
    follow(target, online, TAU)
    if step % 100 == 0:
        print(f"step {step}: loss {loss.item():.3f}  mean value {value.mean().item():.2f}")

# returns of 200 start states, each played 32 times
first_stock, first_age = SHELF * torch.rand(200), 2 * torch.rand(200)
stock, age = first_stock.repeat(32), first_age.repeat(32)
returns, discount = torch.zeros_like(stock), 1.0
for _ in range(60):
    reward, stock, age = week(stock, age)
    returns, discount = returns + discount * reward, discount * GAMMA
truth = returns.view(32, 200).mean(0)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    guess = online(encode(first_stock, first_age).to(device)).float().cpu()
print(f"metric {(guess - truth).abs().mean().item():.4f}")
