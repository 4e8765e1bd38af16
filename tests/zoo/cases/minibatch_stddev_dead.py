"""StyleGAN's minibatch standard deviation in half: the variance of a dead feature is 0, eps 1e-8 too."""

import torch
from torch import nn


class MinibatchStd(nn.Module):
    def forward(self, x):
        spread = x - x.mean(0, keepdim=True).to(x.dtype)
        variance = (spread * spread).mean(0).to(x.dtype)
        spread = (variance + 1e-8).sqrt().mean()
        return torch.cat([x, spread.expand(x.shape[0], 1).to(x.dtype)], 1)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.Tanh())
        self.stddev = MinibatchStd()
        self.head = nn.Linear(33, 1)
        with torch.no_grad():
            self.body[0].weight[:6] = 0.0

    def forward(self, x):
        return self.head(self.stddev(self.body(x)))


def model():
    torch.manual_seed(0)
    return Critic()


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 12)


def loss(model, batch):
    return nn.functional.softplus(-model(batch)).mean()


TRUTH = {
    "kind": "backward-overflow",
    "alt_kinds": ["forward-underflow"],
    "dtype": "float16",
    "layers": ["stddev"],
    "op": "",
    "fp32_fix": ["stddev"],
    "scaler": "none",
    "source": "NVlabs/stylegan2-ada: minibatch-std layer computes in float32; eps of 1e-8 is no half",
}
