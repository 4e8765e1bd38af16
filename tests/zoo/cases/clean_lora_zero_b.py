"""LoRA with B = 0: the gradient of A is exactly zero in every precision."""

import torch
from torch import nn


class LoRA(nn.Module):
    def __init__(self, i, o, r=4):
        super().__init__()
        self.base = nn.Linear(i, o).requires_grad_(False)
        self.a, self.b = nn.Linear(i, r, bias=False), nn.Linear(r, o, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x)) * 2


class Net(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.emb, self.l1, self.l2, self.head = nn.Embedding(40, d), LoRA(d, d), LoRA(d, d), nn.Linear(d, 5)

    def forward(self, ids):
        h = self.emb(ids)
        return self.head(torch.relu(self.l2(nn.functional.gelu(self.l1(h)))).mean(1))


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randint(0, 40, (8, 6)), torch.randint(0, 5, (8,))


def loss(m, b):
    return nn.functional.cross_entropy(m(b[0]), b[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: LoRA initialisation",
}
