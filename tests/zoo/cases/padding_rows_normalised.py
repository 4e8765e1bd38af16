"""Rows of padding are normalised with eps 1e-8: in half 0 + eps is 0, 0 / 0 is NaN, and where() hides
it only from the loss.
"""

import torch
from torch import nn


class PeakRows(nn.Module):
    def forward(self, x, used):
        peak = x.abs().amax(-1, keepdim=True)
        return torch.where(used, x / (peak + 1e-8), 0.0)


class Pointer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.unit = nn.Linear(6, 24, bias=False), PeakRows()
        self.out = nn.Linear(24, 3)

    def forward(self, x, used):
        return self.out(self.unit(self.embed(x), used).sum(1))


def model():
    torch.manual_seed(0)
    return Pointer()


def batch():
    torch.manual_seed(1)
    used = (torch.arange(10) < 7)[:, None]
    return torch.randn(8, 10, 6) * used, used, torch.randint(3, (8,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0], batch[1]), batch[2])


TRUTH = {
    "kind": "forward-underflow",
    "alt_kinds": ["forward-overflow", "backward-overflow"],
    "dtype": "float16",
    "layers": ["unit"],
    "op": "add,div",
    "fp32_fix": ["unit"],
    "scaler": "none",
    "source": "huggingface/diffusers#13316 (F.normalize eps); pytorch/pytorch#32137",
}
