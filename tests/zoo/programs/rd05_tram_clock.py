"""Online forecasts of tram ridership: each stop has its own clock, and the model learns from the stream as it comes."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
device = "cuda" if torch.cuda.is_available() else "cpu"
STOPS, PER_DAY, DAYS = 48, 24, 18


class StopClock(nn.Module):
    """Time of each stop, in days since its counter was installed."""

    def __init__(self, stops, dtype=torch.bfloat16):
        super().__init__()
        self.register_buffer("days", torch.rand(stops).to(dtype))

    def tick(self):
        self.days += 1.0 / PER_DAY

    def features(self):
        angle = 2 * math.pi * self.days.unsqueeze(1) * torch.arange(1, 4, device=self.days.device)
        return torch.cat([torch.sin(angle), torch.cos(angle)], 1)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.stop = nn.Embedding(STOPS, 8)
        self.net = nn.Sequential(nn.Linear(6 + 8 + 1, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, clock, weather):
        x = torch.cat([clock.features().float(), self.stop.weight, weather], 1)
        return self.net(x).squeeze(1)


class Stream:
    """What the counters send: daily profile of a stop, its size and the weather."""

    def __init__(self, phase):
        self.true_days = phase.clone()
        self.size = 0.6 + 0.8 * torch.rand(STOPS)
        self.late = 0.08 * torch.randn(STOPS)

    def step(self):
        weather = torch.randn(STOPS, 1)
        day = 2 * math.pi * (self.true_days - self.late)
        riders = self.size * (1.0 + torch.sin(day) + 0.6 * torch.sin(2 * day + 0.7)) - 0.2 * weather.squeeze(1)
        riders = riders + 0.1 * torch.randn(STOPS)
        self.true_days = self.true_days + 1.0 / PER_DAY
        return weather.to(device), riders.to(device)


clock = StopClock(STOPS).to(device)
stream = Stream(clock.days.float().cpu())
model = Forecaster().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

errors = []
for hour in range(DAYS * PER_DAY):
    weather, riders = stream.step()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        forecast = model(clock, weather)
    errors.append((forecast.detach().float() - riders).abs().mean().item())  # before it learns from them
    loss = F.smooth_l1_loss(forecast.float(), riders)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    clock.tick()

last = errors[-4 * PER_DAY:]
print(f"first day {sum(errors[:PER_DAY]) / PER_DAY:.3f}")
print(f"metric {sum(last) / len(last):.4f}")
