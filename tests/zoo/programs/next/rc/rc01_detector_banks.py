"""Photon rates of an X-ray detector: a small MLP maps the beam settings to the log rate of each pixel of four banks.

The banks report counts of 1e4 to 1e5 per exposure, so that the model is fitted by the Poisson likelihood. The loss of
each bank is worked out in its own thread of a pool: the banks have their own exposure times and dead pixels.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

BANKS, PIXELS, SETTINGS = 4, 24, 6
STEPS, BATCH = 220, 96

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Beamline:
    """Synthetic beamline: smooth response of each pixel to the beam settings."""

    def __init__(self):
        self.first = torch.randn(SETTINGS, 12) / math.sqrt(SETTINGS)
        self.second = torch.randn(12, BANKS * PIXELS) * 0.45
        self.flat = 10.3 + 0.3 * torch.randn(BANKS, PIXELS)
        self.exposure = torch.tensor([1.0, 1.25, 0.8, 1.1])
        self.alive = torch.rand(BANKS, PIXELS) > 0.05

    def shoot(self, n):
        settings = torch.randn(n, SETTINGS)
        log_rate = torch.tanh(settings @ self.first) @ self.second
        log_rate = log_rate.view(n, BANKS, PIXELS) + self.flat
        counts = torch.poisson(log_rate.exp() * self.exposure[None, :, None])
        return settings.to(device), counts.to(device), log_rate.to(device)


class RateModel(nn.Module):
    def __init__(self, log_mean):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(SETTINGS, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.banks = nn.ModuleList(nn.Linear(64, PIXELS) for _ in range(BANKS))
        for bank in self.banks:
            nn.init.normal_(bank.weight, std=0.02)
            nn.init.constant_(bank.bias, log_mean)

    def forward(self, settings):
        hidden = self.trunk(settings)
        return [bank(hidden) for bank in self.banks]


beamline = Beamline()
exposure = beamline.exposure.tolist()
alive = beamline.alive.to(device)
_, first_counts, _ = beamline.shoot(200)
model = RateModel(first_counts.mean().log().item()).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
pool = ThreadPoolExecutor(max_workers=BANKS)


def bank_loss(bank, log_rate, counts):
    """Poisson deviance of one bank per count, without its dead pixels."""
    expected = torch.exp(log_rate) * exposure[bank]
    deviance = expected - counts * log_rate
    deviance = deviance[:, alive[bank]]
    return deviance.mean() / 1e4


for step in range(STEPS):
    settings, counts, _ = beamline.shoot(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        log_rates = model(settings)
        jobs = [pool.submit(bank_loss, b, log_rates[b], counts[:, b]) for b in range(BANKS)]
        loss = torch.stack([job.result() for job in jobs]).mean()
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")
pool.shutdown()

with torch.no_grad():
    settings, _, truth = beamline.shoot(2000)
    predicted = torch.stack([rate.float() for rate in model(settings)], 1)
    error = (predicted - truth).abs()[:, alive].mean()
print(f"metric {error.item():.5f}")
