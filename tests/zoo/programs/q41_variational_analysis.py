"""Cycle of first guess and variational analysis for surface temperature on a latitude ring."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
GRID, STATIONS = 36, 12


def weather(n):
    lon = torch.linspace(0, 6.2832, GRID + 1)[:-1]
    field = 283.0 * torch.ones(n, GRID)
    for wave in range(1, 7):
        field = field + 1.6 / wave ** 0.5 * (torch.randn(n, 1) * torch.sin(wave * lon) + torch.randn(n, 1) * torch.cos(wave * lon))
    station = (field[:, ::GRID // STATIONS] - 283.0) / 3 + 0.1 * torch.randn(n, STATIONS)
    swath = footprint(field) + 0.05 * torch.randn(n, GRID)
    return field.to(device), station.to(device), swath.to(device)


def footprint(x):
    return 0.6 * x + 0.2 * torch.roll(x, 1, 1) + 0.2 * torch.roll(x, -1, 1)


class FirstGuess(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(STATIONS, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU())
        self.out = nn.Linear(96, GRID)
        nn.init.constant_(self.out.bias, 283.0)

    def forward(self, station):
        return self.out(self.hidden(station))


def analyse(guess, swath, sweeps=24, background_weight=0.02):
    state = guess.detach().clone().requires_grad_(True)
    inner = torch.optim.SGD([state], lr=0.15)
    for _ in range(sweeps):
        inner.zero_grad()
        misfit = (footprint(state) - swath).pow(2).sum() + background_weight * (state - guess.detach()).pow(2).sum()
        (0.5 * misfit).backward()
        inner.step()
    return state.detach()


def cycle(model, outer, scaler, batch):
    _, station, swath = batch
    with torch.autocast("cuda", dtype=torch.float16):
        guess = model(station)
    analysis = analyse(guess, swath)
    loss = F.mse_loss(guess.float(), analysis.float())
    outer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(outer)
    scaler.update()
    return loss.item()


def main():
    data, held = weather(1024), weather(256)
    model = FirstGuess().to(device)
    outer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 12)
    for step in range(120):
        pick = torch.randint(0, 1024, (128,), device=device)
        loss = cycle(model, outer, scaler, [v[pick] for v in data])
        if step % 30 == 0:
            print(f"cycle {step}: {loss:.4f}")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        guess = model(held[1])
    final = analyse(guess, held[2])
    print("METRIC", round((final.float() - held[0]).pow(2).mean().sqrt().item(), 4))


main()
