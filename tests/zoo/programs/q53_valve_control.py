"""A neural controller of a heated mixing tank, trained by back-propagation through the plant model."""

import torch
from torch import nn

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"
HORIZON, BATCH = 20, 128


class Controller(nn.Module):
    """Observes level, temperature and the set points; commands inflow, heater and drain valve in [0, 1]."""

    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.command = nn.Linear(width, 3)
        nn.init.normal_(self.command.weight, std=0.02)
        with torch.no_grad():  # plant procedure: start with the feed closed half, heater at half, drain wide open
            self.command.bias.copy_(torch.tensor([0.0, 0.0, 4.6]))

    def forward(self, obs):
        raw = self.command(self.body(obs))
        return 0.5 + 0.5 * torch.tanh(raw)


class Plant:
    """Level h (m) and temperature T (in units of 50 K above ambient) of the tank."""

    dt = 0.1

    def __call__(self, level, temp, u):
        feed, heat, drain = u.unbind(-1)
        out = 1.2 * drain * torch.sqrt(level.clamp(min=0.01))
        level_new = (level + self.dt * (0.8 * feed - out)).clamp(0.02, 3.0)
        temp_new = temp + self.dt * (1.5 * heat - 0.8 * feed * temp - 0.3 * temp) / (level + 0.3)
        return level_new, temp_new


def situations(n):
    level, temp = 0.3 + 1.2 * torch.rand(n, device=device), torch.rand(n, device=device)
    want_level, want_temp = 0.5 + torch.rand(n, device=device), 0.3 + 0.7 * torch.rand(n, device=device)
    return level, temp, want_level, want_temp


def episode(policy, plant, level, temp, want_level, want_temp):
    cost = 0.0
    for t in range(HORIZON):
        obs = torch.stack([level - want_level, temp - want_temp, want_level, want_temp], -1)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            u = policy(obs)
        level, temp = plant(level, temp, u.float())
        step_cost = (level - want_level) ** 2 + (temp - want_temp) ** 2 + 0.002 * u.float().pow(2).sum(-1)
        cost = cost + step_cost * (0.5 + t / HORIZON)
    return (cost / HORIZON).mean()


policy, plant = Controller().to(device), Plant()
optimizer = torch.optim.Adam(policy.parameters(), lr=4e-3)
total = 400
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
for it in range(total):
    cost = episode(policy, plant, *situations(BATCH))
    optimizer.zero_grad()
    cost.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if it % 50 == 0:
        print(f"iteration {it} cost {cost.item():.4f}")

with torch.no_grad():
    cost = episode(policy, plant, *situations(2048))
print(f"METRIC {cost.item():.4f}")
