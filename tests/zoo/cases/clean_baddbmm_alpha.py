"""Scores by baddbmm with alpha = 1/d: the unscaled product would overflow, the scaled one does not."""

import torch
from torch import nn


class Attn(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        zero = torch.zeros(x.shape[0], x.shape[1], x.shape[1], dtype=q.dtype)
        s = torch.baddbmm(zero, q, k.transpose(1, 2), beta=0, alpha=1e-4)
        return self.out(s.softmax(-1).to(v.dtype) @ v)


class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inp, self.attn, self.norm, self.head = nn.Linear(8, d), Attn(d), nn.LayerNorm(d), nn.Linear(d, 4)

    def forward(self, x):
        h = self.inp(x)
        return self.head(self.norm(h + self.attn(h)).mean(1))


def model():
    torch.manual_seed(0)
    m = Net()
    with torch.no_grad():
        m.attn.qkv.weight[:64].mul_(200)
    return m


def batch():
    torch.manual_seed(1)
    return torch.randn(6, 10, 8), torch.randint(0, 4, (6,))


def loss(m, b):
    return nn.functional.cross_entropy(m(b[0]), b[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: Megatron baddbmm with the norm factor inside",
}
