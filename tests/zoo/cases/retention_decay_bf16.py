"""RetNet-like retention: gamma = 0.998 cast to bf16 becomes 1: the state never forgets."""

import torch
from torch import nn


class Retention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d, d) for _ in range(3))
        self.register_buffer("gamma", torch.tensor([0.998]))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        g = self.gamma.to(q.dtype)
        n = x.shape[1]
        age = (torch.arange(n)[:, None] - torch.arange(n)).clamp(min=0)
        decay = torch.cumprod(g.expand(n), 0)[age].tril()
        return (q @ k.transpose(1, 2) * decay / n**0.5).to(v.dtype) @ v


class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.embed, self.retention, self.head = nn.Linear(4, d), Retention(d), nn.Linear(d, 3)

    def forward(self, x):
        return self.head(self.retention(self.embed(x))[:, -1])


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    t = torch.linspace(1, 0, 800)[None, :, None]
    return torch.randn(8, 800, 4) * 0.3 + t, torch.randint(0, 3, (8,))


def loss(m, b):
    return nn.functional.cross_entropy(m(b[0]), b[1])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "bfloat16",
    "layers": ["retention"],
    "op": "_to_copy,cumprod,mul",
    "fp32_fix": ["retention"],
    "scaler": "none",
    "source": "microsoft/torchscale RetNet decay; state-spaces/mamba#923",
}
