"""A hand-written normalisation that squares large activations in a float32 island, done right."""

import torch
from torch import nn


class RmsNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))

    def forward(self, x):
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            wide = x.float()
            return (wide * (wide * wide).mean(-1, keepdim=True).add(1e-6).rsqrt() * self.gain).to(x.dtype)


def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), RmsNorm(32), nn.Linear(32, 32), RmsNorm(32), nn.Linear(32, 4))
    with torch.no_grad():
        net[2].weight.mul_(800)
    return net


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 8), torch.randint(4, (32,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: float32 island",
}
