"""Surge at a tide gauge from pressure and wind, trained with a small dynamic loss scaler of our own."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(61)
HOURS, STEPS, BATCH = 24, 150, 128


def make_storms(count):
    """Weather of a day and the surge (in m) that it leaves behind."""
    pressure = torch.randn(count, HOURS).cumsum(1) * 0.3
    wind = torch.randn(count, 2, HOURS).cumsum(2) * 0.2
    memory = torch.exp(-torch.arange(HOURS).flip(0) / 6.0)
    stress = wind[:, 0] * wind.square().sum(1).sqrt()
    surge = -0.1 * (pressure * memory).sum(1) + 0.15 * (stress * memory).sum(1)
    weather = torch.cat([pressure.unsqueeze(1), wind], 1).flatten(1)
    return weather.to(device), (surge + 0.02 * torch.randn(count)).to(device)


class LossScaler:
    """The scale is a tensor; it doubles after a clean stretch, up to a limit, and halves at an overflow."""

    def __init__(self, init=2.0**8, window=20, limit=2.0**12):
        self.scale = torch.tensor(init, device=device)
        self.window, self.limit, self.clean, self.skipped = window, limit, 0, 0

    def backward(self, loss):
        (loss * self.scale).backward()

    def step(self, optimizer, params, max_norm):
        params = list(params)
        for p in params:
            p.grad.div_(self.scale)
        norm = nn.utils.clip_grad_norm_(params, max_norm)
        if torch.isfinite(norm):
            optimizer.step()
            self.clean += 1
            if self.clean % self.window == 0:
                self.scale.mul_(2.0).clamp_(max=self.limit)
        else:
            self.clean, self.skipped = 0, self.skipped + 1
            self.scale.mul_(0.5)


def main():
    weather, surge = make_storms(5000)
    held_weather, held_surge = make_storms(2000)
    model = nn.Sequential(
        nn.Linear(3 * HOURS, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 1)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    scaler = LossScaler()
    for step in range(STEPS):
        rows = torch.randint(0, len(weather), (BATCH,)).to(device)
        with torch.autocast("cuda", dtype=torch.float16):
            forecast = model(weather[rows]).squeeze(1)
            loss = F.smooth_l1_loss(forecast, surge[rows])
        optimizer.zero_grad(set_to_none=True)
        scaler.backward(loss)
        scaler.step(optimizer, model.parameters(), 5.0)
        schedule.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.scale.item():g} skipped {scaler.skipped}")
    print(f"skipped {scaler.skipped}")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        forecast = model(held_weather).squeeze(1).float()
    print(f"metric {(forecast - held_surge).square().mean().sqrt().item():.4f}")


main()
