"""A running mean kept in fp16 with momentum 1e-4: the update is below half an ulp."""

import torch
from torch import nn


class Whiten(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("mean", torch.ones(d, dtype=torch.float16) * 2)

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.mean(0).to(self.mean.dtype), 1e-4)
        return x - self.mean.to(x.dtype)


class Net(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.inp, self.running, self.out = nn.Linear(6, d), Whiten(d), nn.Linear(d, 3)

    def forward(self, x):
        return self.out(self.running(self.inp(x)))


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 6), torch.randint(0, 3, (32,))


def loss(m, b):
    return nn.functional.cross_entropy(m(b[0]), b[1])


def optimizer(m):
    return torch.optim.SGD(m.parameters(), lr=0.01)


TRUTH = {
    "kind": "stagnant-update",
    "dtype": "float16",
    "layers": ["running"],
    "op": "lerp_",
    "fp32_fix": [],
    "scaler": "none",
    "source": "k2-fsa/icefall Whiten / facebookresearch/dino centre in half",
}
