"""Alternate a learned dynamics model and a policy trained through it, for a cart on a hilly rail."""

import torch
from torch import nn

torch.manual_seed(41)
device = "cuda" if torch.cuda.is_available() else "cpu"
DT, CARTS, HORIZON = 0.1, 64, 12


def rail(s, u):
    """Real cart: position in [-3, 3], speed; hills, drag and a weak motor."""
    x, v = s.unbind(-1)
    v = v + DT * (3.0 * u.squeeze(-1) - 0.9 * torch.sin(2 * x) - 0.25 * v * v.abs())
    return torch.stack([(x + DT * v).clamp(-3, 3), v.clamp(-4, 4)], -1)


def cost(s, u, goal):
    return (s[:, 0] - goal).pow(2) + 0.05 * s[:, 1].pow(2) + 0.01 * u.squeeze(-1).pow(2)


class Dynamics(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, s, u):
        x, v = s[:, :1], s[:, 1:]
        change = self.net(torch.cat([torch.sin(2 * x), torch.cos(2 * x), v, u], -1))
        return s + DT * 3.0 * change.float()


class Policy(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, s, goal):
        x, v = s[:, :1], s[:, 1:]
        features = torch.cat([torch.sin(2 * x), torch.cos(2 * x), v, x - goal[:, None], goal[:, None]], -1)
        return torch.tanh(self.net(features).float())


def update(scaler, optimizer, model, loss, clip):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    return norm.item(), scaler.get_scale() < before


def fresh(n):
    s = torch.stack([4 * torch.rand(n, device=device) - 2, torch.randn(n, device=device)], -1)
    return s, 3 * torch.rand(n, device=device) - 1.5


dynamics, policy = Dynamics().to(device), Policy().to(device)
opt_d = torch.optim.Adam(dynamics.parameters(), lr=3e-3)
opt_p = torch.optim.Adam(policy.parameters(), lr=3e-3)
scaler_d = torch.amp.GradScaler("cuda", init_scale=2.0**22)
scaler_p = torch.amp.GradScaler("cuda", init_scale=2.0**20)
total, skipped = 250, [0, 0]
schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(opt, total, eta_min=1e-4) for opt in (opt_d, opt_p)]
store = torch.zeros(0, 5, device=device)
for it in range(total):
    with torch.no_grad():  # the real carts move for a few ticks
        s, goal = fresh(CARTS)
        for _ in range(8):
            u = (policy(s, goal) + 0.4 * torch.randn(CARTS, 1, device=device)).clamp(-1, 1)
            after = rail(s, u)
            store = torch.cat([store, torch.cat([s, u, after], -1)])
            s = after
    for _ in range(3):
        row = store[torch.randint(len(store), (128,), device=device)]
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(dynamics(row[:, :2], row[:, 2:3]), row[:, 3:])
        skipped[0] += update(scaler_d, opt_d, dynamics, loss / DT**2, 5.0)[1]
    s, goal = fresh(128)
    with torch.autocast("cuda", dtype=torch.float16):
        bill = 0.0
        for _ in range(HORIZON):
            u = policy(s, goal)
            s = dynamics(s, u)
            bill = bill + cost(s, u, goal).mean() / HORIZON
    skipped[1] += update(scaler_p, opt_p, policy, bill, 1.0)[1]
    for schedule in schedules:
        schedule.step()
    if it % 50 == 0:
        print(f"round {it} model {loss.item():.6f} cost in the model {bill.item():.3f} skipped {skipped}")

with torch.no_grad():
    (s, goal), bill = fresh(4096), 0.0
    for _ in range(30):
        u = policy(s, goal)
        s = rail(s, u)
        bill += cost(s, u, goal).mean().item() / 30
print(f"METRIC {bill:.4f}")
