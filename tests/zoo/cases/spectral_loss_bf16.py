"""A spectral loss: the FFT does not take bf16."""

import torch
from torch import nn


class Spectral(nn.Module):
    def forward(self, x, y):
        return (torch.fft.rfft(x).abs() - torch.fft.rfft(y).abs()).abs().mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
        self.spectral = Spectral()

    def forward(self, x, y):
        return self.spectral(self.net(x), y)


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randn(8, 32), torch.randn(8, 32)


def loss(model, batch):
    return model(*batch)


TRUTH = {
    "kind": "dtype-error",
    "dtype": "bfloat16",
    "layers": ["spectral"],
    "op": "_fft_r2c,fft_rfft",
    "fp32_fix": ["spectral"],
    "scaler": "none",
    "source": "neuraloperator and STFT losses under bf16: cuFFT has no bfloat16",
}
