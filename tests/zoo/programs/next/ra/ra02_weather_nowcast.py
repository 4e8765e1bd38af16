"""Nowcast of rain intensity from surface stations, with inputs in physical units and a running normaliser."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.bfloat16
BATCH, STEPS = 128, 300


def stations(n):
    """Pressure [hPa], its tendency, temperature [K], dew point [K], wind [m/s], humidity [%] -> rain index."""
    z = torch.randn(n, 6)
    pressure = 1013.0 + 8.0 * z[:, 0]
    tendency = 1.5 * z[:, 1]
    temperature = 287.0 + 6.0 * z[:, 2]
    dewpoint = temperature - 4.0 + 3.0 * z[:, 3]
    wind = 5.0 + 2.0 * z[:, 4].abs()
    humidity = 65.0 + 12.0 * z[:, 5]
    low = torch.sigmoid(-1.5 * z[:, 0] - z[:, 1])
    moist = torch.tanh(z[:, 3] + 0.6 * z[:, 5])
    rain = 2.0 * low * (1.0 + moist) + 0.3 * z[:, 2] * moist + 0.05 * torch.randn(n)
    x = torch.stack([pressure, tendency, temperature, dewpoint, wind, humidity], dim=1)
    return x.to(device), rain.to(device)


class RunningScaler(nn.Module):
    """Standardises the inputs by moments that are tracked over the stream of batches."""

    def __init__(self, features, momentum=0.05):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(features, dtype=amp_dtype))
        self.register_buffer("mean_sq", torch.ones(features, dtype=amp_dtype))
        self.register_buffer("started", torch.tensor(False))

    @torch.no_grad()
    def track(self, x):
        mean, mean_sq = x.mean(0), x.square().mean(0)
        if not self.started:
            self.mean.copy_(mean)
            self.mean_sq.copy_(mean_sq)
            self.started.fill_(True)
        else:
            self.mean += self.momentum * (mean - self.mean)
            self.mean_sq += self.momentum * (mean_sq - self.mean_sq)

    def forward(self, x):
        if self.training:
            self.track(x)
        var = self.mean_sq - self.mean.square()
        return (x - self.mean) / torch.sqrt(var.clamp(min=1e-2))


class Nowcaster(nn.Module):
    def __init__(self, features=6, width=96):
        super().__init__()
        self.scaler = RunningScaler(features)
        self.body = nn.Sequential(
            nn.Linear(features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.body(self.scaler(x)).squeeze(-1)


model = Nowcaster().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

for step in range(STEPS):
    x, rain = stations(BATCH)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=amp_dtype):
        pred = model(x)
        loss = F.smooth_l1_loss(pred, rain)
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 100 == 99:
        print(f"step {step + 1} loss {loss.item():.4f}")

model.eval()
x, rain = stations(8192)
with torch.no_grad(), torch.autocast("cuda", dtype=amp_dtype):
    pred = model(x)
print(f"metric {(pred.float() - rain).pow(2).mean().sqrt().item():.4f}")
