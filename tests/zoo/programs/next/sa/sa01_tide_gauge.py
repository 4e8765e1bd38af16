"""Six-hour-ahead tide forecast from a window of gauge readings, evaluated with averaged weights."""
import copy
import math

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

WINDOW, HORIZON = 48, 6
PERIODS = (12.42, 12.0, 25.82, 23.93)  # M2, S2, O1, K1 in hours


def simulate(hours):
    t = torch.arange(hours, dtype=torch.float32)
    level = torch.zeros(hours)
    for period, height in zip(PERIODS, (1.2, 0.5, 0.3, 0.25)):
        level += height * torch.cos(2 * math.pi * t / period + 6.28 * torch.rand(()))
    surge = torch.zeros(hours)
    push = 0.04 * torch.randn(hours)
    for i in range(1, hours):
        surge[i] = 0.97 * surge[i - 1] + push[i]
    return level + surge + 0.02 * torch.randn(hours)


def windows(series):
    pieces = series.unfold(0, WINDOW + HORIZON, 1)
    return pieces[:, :WINDOW].to(device), pieces[:, -1].to(device)


class Forecaster(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(WINDOW, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.body(x).squeeze(-1)


class WeightAverage:
    """Exponential moving average of a model's weights, used for evaluation."""

    def __init__(self, model, decay=0.995, dtype=torch.bfloat16):
        self.decay = decay
        self.shadow = {k: v.detach().to(dtype, copy=True) for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for name, value in model.state_dict().items():
            average = self.shadow[name]
            average.mul_(self.decay).add_(value.to(average.dtype), alpha=1 - self.decay)

    def copy_to(self, model):
        averaged = copy.deepcopy(model)
        averaged.load_state_dict(self.shadow)
        return averaged


series = simulate(4000)
x_train, y_train = windows(series[:3000])
x_test, y_test = windows(series[3000:])

model = Forecaster().to(device)
average = WeightAverage(model)
steps = 900
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)

for step in range(steps):
    pick = torch.randint(len(x_train), (128,), device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        forecast = model(x_train[pick])
        loss = F.mse_loss(forecast.float(), y_train[pick])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    average.update(model)
    if step % 150 == 0:
        print(f"step {step} loss {loss.item():.4f}")

final = average.copy_to(model).eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    error = (final(x_test).float() - y_test).pow(2).mean().sqrt()
print(f"metric {error.item():.4f}")
