"""Finds faults in a pumping plant: predicts each sensor from the operating point, with a learnt spread for each."""

import math

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(11)

SENSORS, SETTINGS, BATCH, STEPS = 24, 4, 256, 1800

mixing = torch.randn(SETTINGS, SENSORS) / math.sqrt(SETTINGS)
spread = torch.exp(torch.linspace(-2.3, 0.5, SENSORS))[torch.randperm(SENSORS)]


def readings(count):
    settings = torch.randn(count, SETTINGS)
    return settings, torch.tanh(settings) @ mixing + spread * torch.randn(count, SENSORS)


def faulty(count):
    settings, data = readings(count)
    which = torch.randint(SENSORS, (count,))
    sign = torch.randint(2, (count,)) * 2.0 - 1.0
    data[torch.arange(count), which] += sign * 8.0 * spread[which]
    return settings, data


class Monitor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(SETTINGS, 64), nn.GELU(), nn.Linear(64, SENSORS))
        self.log_spread = nn.Parameter(torch.zeros(SENSORS, dtype=torch.bfloat16))

    def forward(self, settings, x):
        deviation = (x - self.net(settings).float()) * torch.exp(-self.log_spread)
        likelihood = 0.5 * deviation.square() + self.log_spread.float()
        return deviation, likelihood.mean()


train_settings, train_data = (part.to(device) for part in readings(8192))
model = Monitor().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (STEPS - step) / 400))

for step in range(STEPS):
    pick = torch.randint(len(train_data), (BATCH,), device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        _, loss = model(train_settings[pick], train_data[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 300 == 0:
        print(f"step {step} loss {loss.item():.4f}")

model.eval()
alarms = []
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    for settings, data in (readings(3000), faulty(3000)):
        deviation, _ = model(settings.to(device), data.to(device))
        alarms.append((deviation.abs().amax(1) > 4.5).float().mean().item())
print(f"false alarms {alarms[0]:.4f}, faults found {alarms[1]:.4f}")
print("METRIC", round(1.0 - alarms[1], 4))
