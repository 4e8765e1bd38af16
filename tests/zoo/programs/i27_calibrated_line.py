"""A production line: a calibrator of raw voltages and a forecaster of quality, each with its own optimizer."""

import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(13)
SENSORS, CHANNELS, BATCH, STEPS, RESTART = 24, 10, 64, 300, 75
PER_VOLT = 1000.0  # the units of the forecaster for one volt


class Calibrator(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(SENSORS, CHANNELS, bias=False)
        nn.init.normal_(self.linear.weight, std=10.0 / PER_VOLT)

    def forward(self, volts):
        return self.linear(volts) * PER_VOLT


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(CHANNELS, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.out = nn.Linear(64, 2)

    def forward(self, channels):
        return self.out(self.body(channels))


def shifts(n):
    g = torch.Generator().manual_seed(31)
    mix, w = torch.randn(SENSORS, 6, generator=g) / SENSORS**0.5, torch.randn(6, 2, generator=g) / 2
    volts = torch.randn(n, SENSORS)
    hidden = volts @ mix
    quality = torch.sin(hidden @ w) + 0.5 * torch.tanh(hidden[:, :2] * hidden[:, 2:4])
    return (0.02 * volts).to(device), (quality + 0.05 * torch.randn(n, 2)).to(device)


data, test = shifts(4096), shifts(1024)
calibrator, forecaster = Calibrator().to(device), Forecaster().to(device)
slow = torch.optim.SGD(calibrator.parameters(), lr=5e-5, momentum=0.9)
fast = torch.optim.AdamW(forecaster.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12, growth_interval=30)
everything = [*calibrator.parameters(), *forecaster.parameters()]

for step in range(STEPS):
    pick = torch.randint(len(data[0]), (BATCH,), device=device)
    volts, quality = data[0][pick], data[1][pick]
    if (step + 1) % RESTART == 0:  # parts made just after the line is restarted wander
        quality = quality + 3.0 * torch.randn_like(quality)
    slow.zero_grad(set_to_none=True)
    fast.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(forecaster(calibrator(volts)), quality)
    scaler.scale(loss).backward()
    scaler.unscale_(slow)
    scaler.unscale_(fast)
    torch.nn.utils.clip_grad_norm_(everything, 10.0)
    scaler.step(slow)
    scaler.step(fast)
    scaler.update()

with torch.no_grad():
    error = nn.functional.mse_loss(forecaster(calibrator(test[0])), test[1]).item()
print(f"scale {scaler.get_scale():.0f}")
print(f"final metric: {error:.4f}")
