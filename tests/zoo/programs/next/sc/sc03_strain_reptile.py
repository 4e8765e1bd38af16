"""Reptile: an initialisation from which the response of a new strain gauge is fitted in a few steps."""
import copy
import math

import torch
from torch import nn

torch.manual_seed(23)
device = "cuda" if torch.cuda.is_available() else "cpu"
FULL_SCALE = 2e-3  # V, bridge output at the rated load
POINTS, INNER_STEPS, OUTER_STEPS, META_LR = 256, 5, 25, 0.5


class Gauge:
    """One gauge: a bridge with its own gain, phase lag and offset."""

    def __init__(self):
        self.gain = 0.5 + torch.rand(1).item()
        self.lag = math.pi * torch.rand(1).item()
        self.offset = 0.3 * torch.randn(1).item()

    def read(self, count):
        load = 4 * torch.rand(count, 1) - 2
        volts = FULL_SCALE * (self.gain * torch.sin(1.5 * load + self.lag) + self.offset)
        volts = volts + 0.01 * FULL_SCALE * torch.randn_like(volts)
        return load.to(device), volts.to(device)


class Response(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, load):
        return FULL_SCALE * self.net(load)


def adapt(start, gauge, steps):
    """Fit a copy of the network to one gauge."""
    model = copy.deepcopy(start)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        load, volts = gauge.read(POINTS)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(load), volts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def relative_error(model, gauge):
    load, volts = gauge.read(POINTS)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        predicted = model(load).float()
    return ((predicted - volts).norm() / (volts - volts.mean()).norm()).item()


meta = Response().to(device)
for outer in range(OUTER_STEPS):
    rate = META_LR * (1 - outer / OUTER_STEPS)
    gauges = [Gauge() for _ in range(2)]
    adapted = [adapt(meta, gauge, INNER_STEPS) for gauge in gauges]
    with torch.no_grad():
        for index, weight in enumerate(meta.parameters()):
            fitted = torch.stack([list(model.parameters())[index] for model in adapted]).mean(0)
            weight.add_(rate * (fitted - weight))
    if outer % 10 == 0:
        print(f"outer {outer} error after adaptation {relative_error(adapted[0], gauges[0]):.3f}")

errors = []
for _ in range(6):
    gauge = Gauge()
    errors.append(relative_error(adapt(meta, gauge, 15), gauge))
print("metric", round(sum(errors) / len(errors), 5))
