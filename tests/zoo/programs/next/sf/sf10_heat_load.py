"""Heat demand of buildings, streaming: a recurrent model whose state is carried from step to step in half precision."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(27)
device = "cuda" if torch.cuda.is_available() else "cpu"

HOUSES, HOURS, STEPS, TEST = 48, 5, 110, 240
DECAY = 0.99


class District:
    """Hourly weather and the heat that each house takes; walls keep warmth for some hours."""

    def __init__(self, n):
        self.size = 0.6 + 0.8 * torch.rand(n)
        self.clock, self.weather, self.wall = 0, torch.zeros(n), torch.zeros(n)

    def hour(self):
        self.clock += 1
        n = len(self.size)
        day = torch.tensor(self.clock * 2 * torch.pi / 24)
        self.weather = 0.95 * self.weather + 0.6 * torch.randn(n)
        outside = 4 + 5 * torch.sin(day) + self.weather
        self.wall = 0.8 * self.wall + 0.2 * outside
        heat = self.size * (20 - self.wall).clamp(min=0) * (1 + 0.3 * torch.cos(day)) + 0.2 * torch.randn(n)
        seen = torch.stack([outside, self.size, torch.sin(day).expand(n), torch.cos(day).expand(n)], 1)
        return seen.to(device), heat.to(device)


class Forecaster(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.gates = nn.Linear(4 + width, 2 * width)
        self.fresh = nn.Linear(4 + width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x, state):
        x = x.to(state.dtype)
        keep, reset = torch.sigmoid(self.gates(torch.cat([x, state], 1))).chunk(2, 1)
        fresh = torch.tanh(self.fresh(torch.cat([x, reset * state], 1)))
        state = keep * state + (1 - keep) * fresh
        return self.out(state).squeeze(1), state


class Standardizer:
    """Running mean and spread of the weather."""

    def __init__(self):
        self.mean, self.square = torch.zeros(4, device=device), torch.ones(4, device=device)

    def __call__(self, seen, learn=True):
        if learn:
            self.mean.lerp_(seen.mean(0), 1 - DECAY)
            self.square.lerp_(seen.square().mean(0), 1 - DECAY)
        return (seen - self.mean) / (self.square - self.mean**2).clamp(min=1e-2).sqrt()


model, standard = Forecaster().to(device), Standardizer()
opt = torch.optim.Adam(model.parameters(), lr=1.2e-2)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**13)

district = District(HOUSES)
state = torch.zeros(HOUSES, 40, device=device, dtype=torch.float16)
for step in range(STEPS):
    loss = 0.0
    with torch.autocast("cuda", dtype=torch.float16):
        for _ in range(HOURS):
            seen, heat = district.hour()
            forecast, state = model(standard(seen), state)
            loss = loss + F.smooth_l1_loss(forecast, heat / 10) / HOURS
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    sched.step()
    state = state.detach()

model.eval()
district = District(HOUSES)
state = torch.zeros(HOUSES, 40, device=device, dtype=torch.float16)
errors = []
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    for hour in range(TEST):
        seen, heat = district.hour()
        forecast, state = model(standard(seen, learn=False), state)
        if hour >= 48:
            errors.append((forecast.float() * 10 - heat).abs().mean())
print(f"loss scale at the end {scaler.get_scale():.0f}")
print(f"metric {torch.stack(errors).mean().item():.4f}")
