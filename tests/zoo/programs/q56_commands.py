"""Spoken commands for a smart speaker: a small CNN on log spectra made by a convolutional filter bank.

One clip in four is spoken from the far end of the room; we report the balanced accuracy over both distances.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"
RATE, LENGTH, COMMANDS, N_FFT, HOP = 8000, 2048, 8, 128, 64
starts = 400 + 1200 * torch.rand(COMMANDS, 2)
ends = 400 + 2600 * torch.rand(COMMANDS, 2)


def record(count, far):
    """Return waveforms of commands and their labels; `far` tells which were recorded from afar."""
    label = torch.randint(COMMANDS, (count,))
    t = torch.arange(LENGTH) / RATE
    sweep = torch.linspace(0, 1, LENGTH)
    wave = torch.zeros(count, LENGTH)
    for k in range(2):
        low = starts[label, k] * (1 + 0.12 * torch.randn(count))
        high = ends[label, k] * (1 + 0.12 * torch.randn(count))
        pitch = low[:, None] + (high - low)[:, None] * sweep
        wave += torch.sin(2 * math.pi * torch.cumsum(pitch, 1) / RATE + 6.3 * torch.rand(count, 1))
    wave = wave * torch.exp(-((t - 0.128) ** 2) / (2 * 0.05**2)) + 0.25 * torch.randn(count, LENGTH)
    level = torch.where(far, 10 ** (-3.7 + 0.3 * torch.rand(count)), 10 ** (-1.0 + 0.5 * torch.rand(count)))
    return (wave * level[:, None]).to(device), label.to(device)


class LogSpectrum(nn.Module):
    """Short-time log power spectrum by two fixed convolutions."""

    def __init__(self):
        super().__init__()
        window = torch.hann_window(N_FFT)
        window = window / window.sum()
        angle = 2 * math.pi * torch.arange(N_FFT)[None] * torch.arange(1, N_FFT // 2 + 1)[:, None] / N_FFT
        self.register_buffer("cosine", (window * torch.cos(angle))[:, None])
        self.register_buffer("sine", (window * torch.sin(angle))[:, None])

    def forward(self, wave):
        real = F.conv1d(wave[:, None], self.cosine, stride=HOP)
        imag = F.conv1d(wave[:, None], self.sine, stride=HOP)
        power = real * real + imag * imag
        bands = F.avg_pool1d(power.transpose(1, 2), 2).transpose(1, 2)
        log = torch.log(bands.float() + 1e-12)
        return log - log.mean((1, 2), keepdim=True)


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = LogSpectrum()
        self.body = nn.Sequential(
            nn.Conv1d(N_FFT // 4, 48, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(48, 64, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.LazyLinear(COMMANDS),
        )  # fmt: skip

    def forward(self, wave):
        return self.body(self.front(wave) / 4)


model = Recogniser().to(device)
model(torch.zeros(1, LENGTH, device=device))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cuda")
steps = 220
for step in range(steps):
    wave, label = record(48, torch.rand(48) < 0.25)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(wave), label)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.3f} scale {scaler.get_scale():.0f}")

accuracy = []
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    for name, far in (("near", False), ("far", True)):
        wave, label = record(600, torch.full((600,), far))
        accuracy.append((model(wave).argmax(1) == label).float().mean().item())
        print(f"{name}: accuracy {accuracy[-1]:.3f}")
print(f"METRIC {sum(accuracy) / 2:.4f}")
