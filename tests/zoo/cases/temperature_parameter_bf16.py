"""Everything is float32 but the learned logit scale, kept in bf16 near 4.6: steps of 1e-3 never move it."""

import torch
from torch import nn


class Similarity(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(4.6, dtype=torch.bfloat16))

    def forward(self, a, b):
        return self.logit_scale.exp() * a @ b.t()


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.similarity = nn.Linear(12, 16), nn.Linear(12, 16), Similarity()

    def forward(self, x):
        unit = nn.functional.normalize
        return self.similarity(unit(self.left(x), dim=-1), unit(self.right(x), dim=-1))


def model():
    torch.manual_seed(0)
    return TwoTower()


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 12)


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch).float(), torch.arange(16))


def optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3)


TRUTH = {
    "kind": "stagnant-update",
    "dtype": "bfloat16",
    "layers": ["similarity"],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "openai/CLIP#57 (logit scale in half); pytorch/torchdistx#52 (bf16 updates)",
}
