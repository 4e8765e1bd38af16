"""Growth rate of a culture from the sensors of a bioreactor, with sensors normalised by running statistics."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"
SENSORS = 6  # temperature, pH, dissolved oxygen, agitation, redox, weight
LEVEL = torch.tensor([37.0, 7.1, 42.0, 118.0, 21.0, 63.0])
SPREAD = torch.tensor([0.15, 0.04, 0.3, 0.5, 0.1, 0.2])


class RunningNorm(nn.Module):
    """Normalise by the mean and variance of what has been seen so far."""

    def __init__(self, features, momentum=0.05, dtype=torch.float32):
        super().__init__()
        self.momentum, self.started = momentum, False
        self.register_buffer("first", torch.zeros(features, dtype=dtype))
        self.register_buffer("second", torch.zeros(features, dtype=dtype))

    @torch.no_grad()
    def observe(self, x):
        rate = self.momentum if self.started else 1.0
        self.first += rate * (x.mean(0).to(self.first.dtype) - self.first)
        self.second += rate * ((x * x).mean(0).to(self.second.dtype) - self.second)
        self.started = True

    def forward(self, x):
        if self.training:
            self.observe(x)
        variance = self.second - self.first**2
        std = variance.float().clamp(min=1e-3).sqrt()
        return (x - self.first.float()) / std


class GrowthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RunningNorm(SENSORS)
        self.net = nn.Sequential(nn.Linear(SENSORS, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))

    def forward(self, x):
        return self.net(self.norm(x)).squeeze(1)


weight = torch.randn(SENSORS, 3)


def readings(n):
    z = torch.randn(n, SENSORS)
    hidden = z @ weight / 2
    rate = torch.sin(hidden[:, 0]) + 0.5 * torch.tanh(hidden[:, 1] * 1.5) - 0.3 * hidden[:, 2]
    return (LEVEL + SPREAD * z).to(device), (rate + 0.05 * torch.randn(n)).to(device)


model = GrowthNet().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
for step in range(200):
    x, rate = readings(128)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(x).float(), rate)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 50 == 0:
        print(f"step {step}: {loss.item():.4f}")

model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    x, rate = readings(6000)
    rmse = F.mse_loss(model(x).float(), rate).sqrt().item()
print(f"metric {rmse:.4f}")
