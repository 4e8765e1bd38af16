"""MMD loss: exp(-d / (2 * s * s)) with a bandwidth of 1e-4 held in half: s * s is zero."""

import torch
from torch import nn


class MMD(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sigma", torch.tensor([1e-4, 1e-2]))

    def kernel(self, a, b):
        d = torch.cdist(a, b) * 1e-3
        s = self.sigma.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else self.sigma
        return sum(torch.exp(-(d.to(s.dtype) ** 2) / (2 * x * x)) for x in s)

    def forward(self, a, b):
        return self.kernel(a, a).mean() + self.kernel(b, b).mean() - 2 * self.kernel(a, b).mean()


class Adapt(nn.Module):
    def __init__(self):
        super().__init__()
        self.f, self.mmd = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)), MMD()

    def forward(self, a, b):
        return self.mmd(self.f(a), self.f(b))


def model():
    torch.manual_seed(0)
    return Adapt()


def batch():
    torch.manual_seed(1)
    return torch.randn(24, 6), torch.randn(24, 6) + 1


def loss(m, b):
    return m(*b)


TRUTH = {
    "kind": "forward-underflow",
    "alt_kinds": ["forward-overflow", "precision-loss"],
    "dtype": "float16",
    "layers": ["mmd"],
    "op": "div,mul",
    "fp32_fix": ["mmd"],
    "scaler": "none",
    "source": "thuml/Transfer-Learning-Library MMD under amp",
}
