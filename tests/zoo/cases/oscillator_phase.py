"""A harmonic oscillator: phase = 2 pi f t is multiplied in half and its sine is noise after some
milliseconds.
"""

import math

import torch
from torch import nn


class Oscillator(nn.Module):
    def forward(self, pitch, amplitude):
        time = torch.arange(200, dtype=torch.float32) / 200
        phase = (2 * math.pi * pitch[:, None, :]) * time[None, :, None].to(pitch.dtype)
        return (torch.sin(phase) * amplitude[:, None]).sum(-1)


class Synth(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pitch, self.loud = nn.Linear(6, 24), nn.Linear(24, 8), nn.Linear(24, 8)
        self.oscillator = Oscillator()
        with torch.no_grad():
            self.pitch.bias.copy_(220.0 * torch.arange(1, 9))

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.oscillator(220.0 * torch.arange(1, 9).to(h.dtype) + 0 * self.pitch(h), self.loud(h))


def model():
    torch.manual_seed(0)
    return Synth()


def batch():
    torch.manual_seed(1)
    return torch.randn(4, 6), torch.randn(4, 200)


def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]).float(), batch[1])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "float16",
    "layers": ["oscillator"],
    "op": "mul,sin",
    "fp32_fix": ["oscillator"],
    "scaler": "none",
    "source": "hexgrad/kokoro#353",
}
