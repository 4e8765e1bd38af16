"""Top-2 routing decided in float32; experts run in half, and some get no token."""

import torch
from torch import nn


class TopTwo(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.router = nn.Linear(d, n)
        self.experts = nn.ModuleList(nn.Linear(d, d) for _ in range(n))

    def forward(self, x):
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            weight, chosen = self.router(x.float()).softmax(-1).topk(2, -1)
        share = torch.zeros(len(x), len(self.experts)).scatter(1, chosen, weight)
        mixed = [share[:, i, None] * expert(x) for i, expert in enumerate(self.experts)]
        return x + torch.stack(mixed).sum(0)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(20, 16), TopTwo(16, 5), nn.Linear(16, 4))


def batch():
    torch.manual_seed(1)
    return torch.randint(20, (64,)), torch.randint(4, (64,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: top-k routing in float32",
}
