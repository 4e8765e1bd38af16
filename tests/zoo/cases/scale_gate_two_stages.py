"""Branches behind gates of 1e-6: at scale 1 their gradients vanish while the trunk's are fine."""

import torch
from torch import nn


class Gated(nn.Module):
    def __init__(self, d, gate):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.gate = nn.Parameter(torch.tensor(gate))

    def forward(self, x):
        return x + self.gate * self.branch(x)


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 24), Gated(24, 0.5), Gated(24, 1e-6), nn.LayerNorm(24), nn.Linear(24, 4)
    )


def batch():
    torch.manual_seed(1)
    return torch.randn(64, 8), torch.randint(4, (64,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "grad-underflow",
    "dtype": "float16",
    "layers": ["2", "2.branch", "2.branch.0", "2.branch.1", "2.branch.2"],
    "op": "",
    "fp32_fix": ["2"],
    "scaler": "needs-scale>=2**8",
    "source": "mechanism: gated residual branches (SkipInit, ReZero, LayerScale) near their initial value",
}
