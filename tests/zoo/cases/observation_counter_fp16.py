"""A running mean of observations in float16: at 1e4 frames the step (x - mean) / n is below its ulp."""

import torch
from torch import nn


class RunningMean(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("mean", torch.full((d,), 4.0, dtype=torch.float16))
        self.frames = 10000

    def forward(self, x):
        return x - self.mean.float()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.center = RunningMean(6)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x):
        return self.net(self.center(x))


def model():
    torch.manual_seed(0)
    return Policy()


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 6) + 4.3, torch.randint(2, (16,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def after_step(model):
    center = model.center
    center.frames += 1
    center.mean += ((batch()[0].mean(0) - center.mean.float()) / center.frames).to(center.mean.dtype)


TRUTH = {
    "kind": "stagnant-update",
    "dtype": "float16",
    "layers": ["center"],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "mechanism: running observation statistics of reinforcement learning held in half",
}
