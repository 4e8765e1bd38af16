"""Surrogate of ignition in a one-dimensional slab, trained on line from a pool of solver runs.

The pool holds many runs of the solver at different stages.  Each training step draws a batch from the pool, asks the
solver for the state a few steps ahead, fits the network to the rise in temperature, and moves all runs on by one step.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CELLS, RUNS, BATCH, AHEAD = 64, 96, 24, 20
T_BURNT, T_ACT, RATE, KAPPA = 1600.0, 15000.0, 2.4e5, 0.02


def advance(temp, steps):
    """Explicit steps of conduction with an Arrhenius source; temperatures in kelvin."""
    for _ in range(steps):
        wide = F.pad(temp[:, None], (1, 1), mode="replicate")[:, 0]
        conduction = KAPPA * (wide[:, 2:] - 2 * temp + wide[:, :-2])
        source = RATE * (T_BURNT - temp).clamp_min(0) * torch.exp(-T_ACT / temp)
        temp = temp + conduction + source.clamp_max(30.0)
    return temp


def cold_slabs(count):
    """Smooth warm spots on a slab at about 665 K."""
    x = torch.linspace(0, 1, CELLS, device=device)
    temp = torch.full((count, CELLS), 665.0, device=device)
    for _ in range(2):
        centre = torch.rand(count, 1, device=device)
        width = 0.08 + 0.12 * torch.rand(count, 1, device=device)
        height = 12 + 12 * torch.rand(count, 1, device=device)
        temp = temp + height * torch.exp(-(((x - centre) / width) ** 2))
    return temp


class Surrogate(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 7, padding=3, padding_mode="replicate"), nn.GELU(),
            nn.Conv1d(width, width, 7, padding=3, padding_mode="replicate"), nn.GELU(),
            nn.Conv1d(width, width, 7, padding=3, padding_mode="replicate"), nn.GELU(),
            nn.Conv1d(width, 1, 1),
        )

    def forward(self, temp):
        return self.net((temp[:, None] - 900.0) / 400.0)[:, 0]


def main():
    torch.manual_seed(11)
    model = Surrogate().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    steps = 720
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    scaler = torch.amp.GradScaler("cuda")

    test = cold_slabs(64)
    stages = []
    for _ in range(33):
        test = advance(test, 20)
        stages.append(test)
    test = torch.cat(stages[::3])
    test_rise = advance(test, AHEAD) - test

    pool = cold_slabs(RUNS).to(torch.float16)
    for step in range(steps):
        pick = torch.randperm(RUNS, device=device)[:BATCH]
        temp = pool[pick].float()
        rise = advance(temp, AHEAD) - temp
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.smooth_l1_loss(model(temp), rise / 100.0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()

        pool = advance(pool.float(), 1).to(pool.dtype)
        if step % 8 == 7:
            oldest = (step // 8) % RUNS
            pool[oldest] = cold_slabs(1)[0].to(pool.dtype)
        if step % 150 == 149:
            print(f"step {step + 1}  loss {loss.item():.4f}  hottest cell {pool.max().item():.0f} K")

    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        error = model(test).float() * 100.0 - test_rise
    print("METRIC", round((error.norm() / test_rise.norm()).item(), 4))


main()
