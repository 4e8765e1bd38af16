"""Spectrogram magnitude sqrt(re^2 + im^2 + 1e-9): silent frames give sqrt(0), whose gradient is infinite."""

import torch
from torch import nn


class Magnitude(nn.Module):
    def __init__(self, n=32):
        super().__init__()
        t, k = torch.arange(n).float(), torch.arange(n // 2)[:, None].float()
        self.register_buffer("cos", torch.cos(2 * torch.pi * k * t / n)[:, None])
        self.register_buffer("sin", torch.sin(2 * torch.pi * k * t / n)[:, None])

    def forward(self, x):
        re, im = nn.functional.conv1d(x, self.cos, stride=16), nn.functional.conv1d(x, self.sin, stride=16)
        return torch.sqrt(re * re + im * im + 1e-9)


class Vocoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen, self.mag = (
            nn.Sequential(nn.Conv1d(4, 16, 7, padding=3), nn.LeakyReLU(0.2), nn.Conv1d(16, 1, 7, padding=3)),
            Magnitude(),
        )

    def forward(self, c, voiced):
        return self.gen(c) * voiced.to(c.dtype)


def model():
    torch.manual_seed(0)
    return Vocoder()


def batch():
    torch.manual_seed(1)
    v = torch.ones(2, 1, 256)
    v[..., 160:] = 0
    return torch.randn(2, 4, 256), v, torch.rand(2, 16, 15)


def loss(m, b):
    return nn.functional.l1_loss(m.mag(m(b[0], b[1])).float(), b[2])


TRUTH = {
    "kind": "backward-overflow",
    "alt_kinds": ["forward-underflow"],
    "dtype": "float16",
    "layers": ["mag"],
    "op": "sqrt,add,div",
    "fp32_fix": ["mag"],
    "scaler": "none",
    "source": "jaywalnut310/vits#15; adobe-research/convmelspec#3",
}
