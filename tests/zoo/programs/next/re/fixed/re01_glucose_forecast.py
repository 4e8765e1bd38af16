"""Forecast a continuous glucose monitor one hour ahead from four hours of readings, insulin and meals."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(11)
HISTORY, HORIZON, STEPS, BATCH = 48, 12, 200, 96


def make_days(count):
    """Traces of a toy patient: a circadian wave plus the delayed answers to meals and insulin."""
    length = HISTORY + HORIZON
    clock = torch.arange(length) * 5 / 60
    start = torch.rand(count, 1) * 24
    base = 0.5 * torch.sin(2 * math.pi * (clock + start) / 24 * 4)
    meals = (torch.rand(count, length) < 0.05).float() * (0.5 + torch.rand(count, length))
    bolus = (torch.rand(count, length) < 0.04).float() * (0.5 + torch.rand(count, length))
    lag = torch.arange(24.0)
    rise = (lag / 6 * torch.exp(1 - lag / 6)).flip(0).view(1, 1, -1)
    fall = (lag / 10 * torch.exp(1 - lag / 10)).flip(0).view(1, 1, -1)
    up = F.conv1d(F.pad(meals.unsqueeze(1), (23, 0)), rise).squeeze(1)
    down = F.conv1d(F.pad(bolus.unsqueeze(1), (23, 0)), fall).squeeze(1)
    glucose = base + up - 0.8 * down + 0.03 * torch.randn(count, length)
    past = torch.stack([glucose[:, :HISTORY], meals[:, :HISTORY], bolus[:, :HISTORY]], 1)
    known = torch.stack([meals[:, HISTORY:], bolus[:, HISTORY:]], 1).flatten(1)
    return past.to(device), known.to(device), glucose[:, HISTORY:].to(device)


class Forecaster(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.past = nn.Sequential(nn.Flatten(), nn.Linear(3 * HISTORY, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Sequential(nn.Linear(width + 2 * HORIZON, width), nn.GELU(), nn.Linear(width, HORIZON))

    def forward(self, past, known):
        return self.head(torch.cat([self.past(past), known], 1))


class LossScaler:
    """Dynamic loss scale that lives on the device, so that no step waits for the host."""

    def __init__(self, init=2.0**12, growth_interval=10, dtype=torch.float16):
        self.scale = torch.tensor(init, dtype=dtype, device=device)
        self.growth_interval, self.good = growth_interval, 0

    def backward(self, loss):
        (loss * self.scale).backward()

    def step(self, optimizer):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for grad in grads:
            grad.div_(self.scale)
        if all(torch.isfinite(grad).all() for grad in grads):
            optimizer.step()
            self.good += 1
            if self.good % self.growth_interval == 0:
                self.scale.mul_(2.0)
        else:
            self.good = 0
            self.scale.mul_(0.5)


def main():
    train, test = make_days(3000), make_days(600)
    model = Forecaster().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-4)
    scaler = LossScaler(dtype=torch.float32)
    for step in range(STEPS):
        rows = torch.randint(0, len(train[0]), (BATCH,)).to(device)
        past, known, future = (part[rows] for part in train)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            forecast = model(past, known)
            loss = F.mse_loss(forecast, future)
        scaler.backward(loss)
        scaler.step(optimizer)
        if step % 80 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        forecast = model(test[0], test[1])
    rmse = (forecast.float() - test[2]).square().mean().sqrt().item()
    print(f"metric {rmse:.4f}")


main()
