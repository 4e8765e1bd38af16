"""Emulator of the Lorenz-96 atmosphere; the run stops when the skill on held-out states no longer gets better."""

import copy

import torch
from torch import nn

K = 16  # sites on the circle of latitude
FORCING = 8.0


def tendency(x):
    return (torch.roll(x, -1, 1) - torch.roll(x, 2, 1)) * torch.roll(x, 1, 1) - x + FORCING


def advance(x, time, dt=0.0125):
    for _ in range(round(time / dt)):
        k1 = tendency(x)
        k2 = tendency(x + 0.5 * dt * k1)
        k3 = tendency(x + 0.5 * dt * k2)
        k4 = tendency(x + dt * k3)
        x = x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return x


def pairs(n, lead=0.05):
    x = FORCING + torch.randn(n, K)
    x = advance(x, 4.0)
    y = advance(x, lead)
    return (x - 2.4) / 3.6, (y - 2.4) / 3.6


class Emulator(nn.Module):
    """The same weights at all sites: each reads a neighbourhood of four to either side."""

    def __init__(self, reach=4, hidden=40):
        super().__init__()
        self.reach = reach
        self.inner = nn.Sequential(
            nn.Linear(2 * reach + 1, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 1)
        )

    def forward(self, x):
        window = torch.stack([torch.roll(x, s, 1) for s in range(-self.reach, self.reach + 1)], dim=2)
        return x + self.inner(window).squeeze(2)


class EarlyStopping:
    def __init__(self, patience):
        self.patience = patience
        self.best = -float("inf")
        self.best_state = None
        self.bad = 0

    def __call__(self, skill, model):
        if skill > self.best:
            self.best = skill
            self.best_state = copy.deepcopy(model.state_dict())
            self.bad = 0
        else:
            self.bad += 1
        return self.bad >= self.patience


@torch.no_grad()
def forecast(model, x, chunk=256):
    model.eval()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = [model(part).to(torch.bfloat16) for part in x.split(chunk)]
    model.train()
    return torch.cat(out)


def skill_score(model, x, y):
    """One minus the error over that of climatology."""
    pred = forecast(model, x)
    truth = y.to(pred.dtype)
    error = (pred - truth).square().mean()
    climate = (truth - truth.mean(0)).square().mean()
    return 1 - error / climate


def main():
    torch.manual_seed(64)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = (t.to(device) for t in pairs(3000))
    xv, yv = (t.to(device) for t in pairs(256))
    xt, yt = (t.to(device) for t in pairs(512))

    model = Emulator().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=1e-5)
    steps, every = 280, 8
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps, eta_min=1e-4)
    stop = EarlyStopping(patience=6)

    for step in range(1, steps + 1):
        rows = torch.randint(0, len(x), (48,), device=device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            pred = model(x[rows])
            loss = nn.functional.mse_loss(pred, y[rows])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % every == 0:
            skill = skill_score(model, xv, yv)
            if step % (5 * every) == 0:
                print(f"step {step:4d}  loss {loss.item():.5f}  skill {skill.item():.5f}")
            if stop(skill, model):
                print(f"no better skill for {stop.patience} evaluations, stopped at step {step}")
                break

    model.load_state_dict(stop.best_state)
    with torch.no_grad():
        residual = forecast(model, xt).float() - yt
    print(f"best skill on held-out states {float(stop.best):.5f}")
    print(f"final metric: {residual.square().mean().sqrt().item():.5f}")


if __name__ == "__main__":
    main()
