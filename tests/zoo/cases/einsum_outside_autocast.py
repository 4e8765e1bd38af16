"""An island with autocast off keeps its half input and meets a float32 weight in einsum."""

import torch
from torch import nn


class HeadMix(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.mix = nn.Parameter(torch.eye(heads))

    def forward(self, x):
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return torch.einsum("bthd,hk->btkd", x, self.mix)


class Talking(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs, self.talk, self.out = nn.Linear(6, 32), HeadMix(4), nn.Linear(32, 3)

    def forward(self, x):
        h = self.inputs(x).unflatten(-1, (4, 8))
        return self.out(self.talk(h).flatten(-2)).mean(1)


def model():
    torch.manual_seed(0)
    return Talking()


def batch():
    torch.manual_seed(1)
    return torch.randn(4, 5, 6), torch.randint(3, (4,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "dtype-error",
    "dtype": "float16",
    "layers": ["talk"],
    "op": "bmm,einsum",
    "fp32_fix": ["talk"],
    "scaler": "none",
    "source": "pytorch/pytorch#42358 (half outputs used after autocast)",
}
