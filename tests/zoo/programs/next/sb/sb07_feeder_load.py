"""Hourly load of a distribution feeder over one year: Time2Vec calendar features and weather."""
import math

import torch
from torch import nn

torch.manual_seed(40)
device = "cuda" if torch.cuda.is_available() else "cpu"
HOURS, BATCH, STEPS = 8760, 256, 300
PERIODS = [8760.0, 168.0, 84.0, 24.0, 12.0, 8.0]

hour = torch.arange(HOURS, dtype=torch.float32)
weather = torch.randn(HOURS, 3)
load = (
    0.8 * torch.sin(2 * math.pi * hour / 24 - 1.2)
    + 0.4 * torch.sin(2 * math.pi * hour / 12 + 0.5)
    + 0.5 * torch.cos(2 * math.pi * hour / 168)
    + 0.6 * torch.cos(2 * math.pi * hour / 8760)
    + 0.3 * weather[:, 0] * torch.relu(weather[:, 1])
    + 0.15 * torch.randn(HOURS)
)


class Time2Vec(nn.Module):
    """Learnable sinusoids of the running hour, started at the known periods, with both phases."""

    def __init__(self, periods):
        super().__init__()
        self.phase = nn.Linear(1, 2 * len(periods))
        with torch.no_grad():
            frequency = 2 * math.pi / torch.tensor(periods)
            self.phase.weight.copy_(torch.cat([frequency, frequency])[:, None])
            self.phase.bias.copy_(torch.cat([torch.zeros(len(periods)), torch.full((len(periods),), math.pi / 2)]))

    def forward(self, hour):
        return torch.sin(self.phase(hour))


class LoadModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = Time2Vec(PERIODS)
        self.net = nn.Sequential(nn.Linear(2 * len(PERIODS) + 3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, hour, weather):
        return self.net(torch.cat([self.time(hour), weather], dim=-1)).squeeze(-1)


model = LoadModel().to(device)
optimizer = torch.optim.AdamW([
    {"params": model.net.parameters(), "lr": 3e-3},
    {"params": model.time.parameters(), "lr": 1e-7, "weight_decay": 0.0},
])
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

held_out = torch.rand(HOURS) < 0.25
hour, weather, load, held_out = hour[:, None].to(device), weather.to(device), load.to(device), held_out.to(device)
rows = (~held_out).nonzero().squeeze(1)

for step in range(STEPS):
    index = rows[torch.randint(len(rows), (BATCH,), device=device)]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(hour[index], weather[index]), load[index])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")

with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    predicted = model(hour[held_out], weather[held_out]).float()
print(f"metric {(predicted - load[held_out]).pow(2).mean().sqrt().item():.4f}")
