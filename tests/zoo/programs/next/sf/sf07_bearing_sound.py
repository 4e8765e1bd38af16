"""Bearing faults from acoustic emission (volts at the microphone): log-band front end and a small classifier."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"

RATE, LENGTH, WINDOW, BANDS, CLASSES = 16000, 1024, 256, 24, 5
STEPS, BATCH = 220, 96
TONES = [0.0, 1100.0, 2300.0, 3700.0, 5600.0]  # healthy, outer race, inner race, cage, ball


def recordings(n):
    label = torch.randint(CLASSES, (n,))
    t = torch.arange(LENGTH) / RATE
    tone = torch.tensor(TONES)[label] * (1 + 0.03 * torch.randn(n))
    strength = 4e-4 * (0.6 + 0.8 * torch.rand(n)) * (label > 0)
    phase = 2 * math.pi * torch.rand(n, 1)
    ring = strength[:, None] * torch.sin(2 * math.pi * tone[:, None] * t + phase)
    hum = 6e-3 * torch.rand(n, 1) * torch.sin(2 * math.pi * 250 * t + phase * 3)
    sound = ring + hum + 5e-4 * torch.randn(n, LENGTH)
    return sound.to(device), label.to(device)


def band_matrix():
    """Triangular bands over the bins of a spectrum."""
    bins = torch.linspace(0, RATE / 2, WINDOW // 2 + 1)
    edges = torch.linspace(100, RATE / 2 - 200, BANDS + 2)
    low, mid, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return torch.minimum((bins - low) / (mid - low), (high - bins) / (high - mid)).clamp(min=0).T.contiguous()


class LogBands(nn.Module):
    """Mean power in each band over the frames of a recording, in log."""

    def __init__(self):
        super().__init__()
        self.register_buffer("bands", band_matrix())
        self.register_buffer("window", torch.hann_window(WINDOW))

    def forward(self, sound):
        frames = sound.unfold(1, WINDOW, WINDOW // 2) * self.window
        power = torch.fft.rfft(frames).abs().square() / WINDOW**2
        energy = (power @ self.bands).mean(1)
        return torch.log(energy + 1e-7)


class Detector(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.front = LogBands()
        self.norm = nn.BatchNorm1d(BANDS)
        self.body = nn.Sequential(nn.Linear(BANDS, width), nn.ReLU(), nn.Linear(width, CLASSES))

    def forward(self, sound):
        return self.body(self.norm(self.front(sound)))


model = Detector().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-3)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    sound, label = recordings(BATCH)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(sound), label)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()

model.eval()
sound, label = recordings(3000)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    accuracy = (model(sound).argmax(1) == label).float().mean()
print(f"metric {accuracy.item():.4f}")
