"""Anomaly detection in a plant: an autoencoder over 96 raw sensors, and a network that calibrates its score."""
import torch
from torch import nn

SENSORS, BATCH, STEPS = 96, 256, 200


class GuardedScaler(torch.amp.GradScaler):
    """GradScaler that cannot collapse: once a night run ended with a scale of 1e-12."""

    def __init__(self, device, floor=2.0 ** 10, **kw):
        super().__init__(device, **kw)
        self.floor = floor

    def update(self, new_scale=None):
        super().update(new_scale)
        if self.get_scale() < self.floor:
            super().update(self.floor)


class Plant:
    """Operating point -> sensors in their own units (bar, rpm, kW, degrees); some samples have a stuck or drifting sensor."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.mix = torch.randn(6, SENSORS, generator=self.g)
        self.unit = 10 ** (1.0 + 1.5 * torch.rand(SENSORS, generator=self.g))

    def sample(self, n, faults=0.0):
        z = torch.randn(n, 6, generator=self.g)
        x = torch.tanh(z @ self.mix * 0.5) + 0.03 * torch.randn(n, SENSORS, generator=self.g)
        bad = torch.rand(n, generator=self.g) < faults
        which = torch.randint(0, SENSORS, (n,), generator=self.g)
        kick = torch.zeros(n, SENSORS).scatter(1, which[:, None], 1.5 * torch.randn(n, 1, generator=self.g).sign())
        return (x + bad[:, None] * kick + 1.2) * self.unit, bad


class AutoEncoder(nn.Module):
    def __init__(self, unit, code=8, hid=64):
        super().__init__()
        self.register_buffer("unit", unit)
        self.enc = nn.Sequential(nn.Linear(SENSORS, hid), nn.SiLU(), nn.Linear(hid, code))
        self.dec = nn.Sequential(nn.Linear(code, hid), nn.SiLU(), nn.Linear(hid, SENSORS))

    def forward(self, x):
        return (self.dec(self.enc(x / self.unit - 1.2)).float() + 1.2) * self.unit


class Calibrator(nn.Module):
    """Expected log-residual for a code; the anomaly score is the residual over the expected one."""

    def __init__(self, code=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(code, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, z):
        return self.net(z).squeeze(1).float()


class Detector:
    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.plant = Plant(seed)
        self.ae, self.cal = AutoEncoder(self.plant.unit).to(self.device), Calibrator().to(self.device)
        self.opt_ae = torch.optim.Adam(self.ae.parameters(), lr=3e-3)
        self.opt_cal = torch.optim.Adam(self.cal.parameters(), lr=5e-3)
        self.scaler = GuardedScaler(self.device)

    def losses(self, x):
        with torch.autocast(self.device, dtype=torch.float16):
            rec = self.ae(x)
            expected = self.cal(self.ae.enc(x / self.ae.unit - 1.2).detach())
        energy = (rec - x).square().sum(1)
        return energy.mean(), (expected - energy.detach().log()).square().mean()

    def step(self, x):
        rec, cal = self.losses(x.to(self.device))
        self.opt_ae.zero_grad(set_to_none=True)
        self.opt_cal.zero_grad(set_to_none=True)
        self.scaler.scale(rec).backward()
        self.scaler.scale(cal).backward()
        self.scaler.step(self.opt_ae)
        self.scaler.step(self.opt_cal)
        self.scaler.update()
        return rec.item(), cal.item()

    def fit(self):
        for n in range(STEPS):
            rec, cal = self.step(self.plant.sample(BATCH)[0])
            if n % 25 == 0 or n == STEPS - 1:
                print(f"step {n:3d}  total {rec + cal:.4g}  calibration {cal:.4f}")
        return self.auc()

    @torch.no_grad()
    def auc(self):
        x, bad = self.plant.sample(4096, faults=0.1)
        x = x.to(self.device)
        z = self.ae.enc(x / self.ae.unit - 1.2)
        score = ((self.ae(x) - x) / self.ae.unit).square().sum(1).log() - self.cal(z)
        a = (score[bad][:, None] > score[~bad][None]).float().mean().item()
        print(f"auc on 10 % faulty samples: {a:.3f}")
        return a


if __name__ == "__main__":
    Detector().fit()
