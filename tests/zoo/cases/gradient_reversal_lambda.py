"""Gradient reversal with a lambda of 1e-6 early in its schedule: the product with the half gradient is
zero.
"""

import torch
from torch import nn


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -1e-6 * grad


class Adversary(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, h):
        return self.net(Reverse.apply(h))


class DomainAdapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.content, self.style = (
            nn.Linear(10, 24),
            nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 24)),
        )
        self.label, self.adversary = nn.Linear(24, 3), Adversary()

    def forward(self, x):
        return self.label(self.content(x)), self.adversary(self.style(x))


def model():
    torch.manual_seed(0)
    return DomainAdapter()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 10), torch.randint(3, (32,)), torch.randint(2, (32,))


def loss(model, batch):
    label, domain = model(batch[0])
    return nn.functional.cross_entropy(label, batch[1]) + nn.functional.cross_entropy(domain, batch[2])


TRUTH = {
    "kind": "grad-underflow",
    "dtype": "float16",
    "layers": ["adversary", "style", "style.0", "style.1", "style.2"],
    "op": "",
    "fp32_fix": [],
    "scaler": "needs-scale>=2**8",
    "source": "mechanism: Ganin et al. 2016 (lambda grows from 0); Micikevicius et al. 2018 (underflow)",
}
