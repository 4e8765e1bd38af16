"""Wrist angles from muscle signals: an encoder for all people, a linear read-out fitted online to each new one."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"
CHANNELS, FEATURES, ANGLES = 12, 32, 3
drive = torch.randn(ANGLES, CHANNELS)


def session(n, turn):
    """Muscle signals of one person, whose electrodes sit a little differently."""
    t = torch.arange(n) / 15
    angle = torch.stack([torch.sin(t * f + p) for f, p in zip((1.0, 1.37, 0.61), 6 * torch.rand(3))], 1)
    signal = torch.tanh(angle @ (drive + turn * torch.randn_like(drive))) + 0.1 * torch.randn(n, CHANNELS)
    return signal.to(device), angle.to(device)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(CHANNELS, 64), nn.GELU(), nn.Linear(64, FEATURES), nn.Tanh())
        self.angle = nn.Linear(FEATURES, ANGLES)

    def forward(self, x):
        return self.angle(self.layers(x))


class Recursive:
    """Recursive least squares with forgetting."""

    def __init__(self, like, ridge=0.002, keep=0.98):
        size = like.shape[-1]
        self.P = torch.eye(size, dtype=like.dtype, device=like.device) / ridge
        self.W = torch.zeros(size, ANGLES, device=like.device)
        self.keep = keep

    def update(self, h, target):
        Ph = self.P @ h
        gain = Ph / (self.keep + h @ Ph)
        error = target - h.float() @ self.W
        self.W += torch.outer(gain.float(), error)
        self.P = (self.P - torch.outer(gain, Ph)) / self.keep

    def __call__(self, h):
        return h.float() @ self.W


model = Encoder().to(device)
opt = torch.optim.Adam(model.parameters(), lr=4e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
for step in range(100):
    x, y = session(96, 0.1)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(x).float(), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
print(f"encoder loss {loss.item():.4f}")

signal, angle = session(600, 0.4)
with torch.no_grad():
    with torch.autocast("cuda", dtype=torch.float16):
        features = model.layers(signal)
    readout = Recursive(features)
    for h, target in zip(features[:400], angle[:400]):
        readout.update(h, target)
    error = (readout(features[400:]) - angle[400:]).pow(2).mean()
print(f"without a fit {F.mse_loss(model.angle(features[400:].float()), angle[400:]).item():.4f}")
print("metric", round(min(error.nan_to_num(1e3, 1e3).item(), 1e3), 5))
