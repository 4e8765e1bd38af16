"""Hourly demand forecast; a background thread prepares the batches."""
import math
import queue
import threading
from dataclasses import dataclass
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
LAGS = [24, 48, 168]


@dataclass
class Batch:
    hour: torch.Tensor
    lags: torch.Tensor
    weather: torch.Tensor
    target: torch.Tensor

    def to(self, *args):
        return Batch(*(value.to(*args, non_blocking=True) for value in vars(self).values()))


class Demand:
    """Three years of hours since the meter was installed."""

    def __init__(self, gen, hours=26280):
        t = torch.arange(hours).float()
        day, week = 2 * math.pi * t / 24, 2 * math.pi * t / 168
        self.weather = torch.randn(hours, 2, generator=gen)
        shape = torch.sin(day) + 0.5 * torch.sin(2 * day + 0.7) + 0.3 * torch.cos(week)
        self.load = shape * (1 + 0.3 * self.weather[:, 0]) + 0.2 * self.weather[:, 1]
        self.load = self.load + 0.1 * torch.randn(hours, generator=gen)
        self.hours = hours

    def batch(self, hour):
        lags = torch.stack([self.load[hour - lag] for lag in LAGS], -1)
        return Batch(hour.float(), lags, self.weather[hour], self.load[hour])


class Prefetcher(threading.Thread):
    def __init__(self, data, steps, size, gen):
        super().__init__(daemon=True)
        self.data, self.steps, self.size, self.gen = data, steps, size, gen
        self.ready = queue.Queue(maxsize=4)

    def run(self):
        for _ in range(self.steps):
            hour = torch.randint(200, self.data.hours - 4000, (self.size,), generator=self.gen)
            # half as many bytes over the bus
            self.ready.put(self.data.batch(hour).to(torch.float16).to(device))
        self.ready.put(None)

    def __iter__(self):
        while (batch := self.ready.get()) is not None:
            yield batch


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("period", torch.tensor([24.0, 12.0, 168.0]))
        self.net = nn.Sequential(
            nn.Linear(6 + len(LAGS) + 2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)
        )

    def forward(self, batch):
        angle = 2 * math.pi * batch.hour.float()[:, None] / self.period
        inputs = torch.cat([angle.sin(), angle.cos(), batch.lags.float(), batch.weather.float()], -1)
        return self.net(inputs)[:, 0]


def main():
    torch.manual_seed(6)
    gen = torch.Generator().manual_seed(13)
    data = Demand(gen)
    model = Forecaster().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler("cuda")
    loader = Prefetcher(data, 250, 128, gen)
    loader.start()
    for step, batch in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(batch).float(), batch.target.float())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    test = data.batch(torch.arange(data.hours - 4000, data.hours, 7)).to(device)
    with torch.no_grad():
        error = (model(test) - test.target).pow(2).mean()
    print(f"metric {error.item():.5f}")


main()
