# Neural ODE for a damped, driven pendulum measured by an encoder.
# Rollout with RK2, trained on short windows.
import math
import torch
from torch import nn

torch.manual_seed(3)
dev = "cuda" if torch.cuda.is_available() else "cpu"
DT, HORIZON, BATCH, STEPS = 0.02, 20, 64, 90


def true_rhs(s):
    th, om = s[..., 0], s[..., 1]
    return torch.stack([om, -9.81 / 0.8 * torch.sin(th) - 0.25 * om], -1)


def simulate(s0, n, dt):
    out, s, sub = [s0], s0, 4
    for _ in range(n):
        for _ in range(sub):
            h = dt / sub
            k1 = true_rhs(s)
            k2 = true_rhs(s + h * k1 / 2)
            k3 = true_rhs(s + h * k2 / 2)
            k4 = true_rhs(s + h * k3)
            s = s + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        out.append(s)
    return torch.stack(out, 1)


class Field(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.inp = nn.Linear(2, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 2)

    def forward(self, s):
        h = torch.tanh(self.inp(s))
        h = torch.tanh(self.mid(h))
        return self.out(h)


def rollout(field, s0, n, dt):
    states, s = [s0], s0
    for _ in range(n):
        k1 = field(s)
        k2 = field(s + 0.5 * dt * k1)
        s = s + dt * k2
        states.append(s)
    return torch.stack(states, 1)


def sample(batch, gen):
    th = (torch.rand(batch, generator=gen) * 2 - 1) * 0.8 * math.pi / 2
    om = (torch.rand(batch, generator=gen) * 2 - 1) * 1.0
    return torch.stack([th, om], -1)


gen = torch.Generator().manual_seed(17)
field = Field().to(dev)
opt = torch.optim.Adam(field.parameters(), lr=3e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
s_val = sample(256, gen).to(dev)
y_val = simulate(s_val, HORIZON, DT)

for it in range(STEPS):
    s0 = sample(BATCH, gen).to(dev)
    with torch.no_grad():
        y = simulate(s0, HORIZON, DT)
    opt.zero_grad()
    with torch.autocast(dev, dtype=torch.float16):
        pred = rollout(field, s0, HORIZON, DT)
        loss = nn.functional.mse_loss(pred, y)
    loss.backward()
    opt.step()
    sched.step()
    if it % 15 == 0 or it == STEPS - 1:
        with torch.no_grad():
            val = (rollout(field, s_val, HORIZON, DT) - y_val).pow(2).mean().item()
        print(f"iter {it:4d} | train {loss.item():.5f} | val {val:.6f}")
