"""Linear attention: positive keys times values are summed over all tokens before the normaliser divides."""

import torch
from torch import nn


class LinearAttention(nn.Module):
    def forward(self, q, k, v):
        q, k = q.relu(), k.relu()
        context = torch.einsum("bnd,bne->bde", k, v)
        weight = torch.einsum("bnd,bd->bn", q.float(), k.float().sum(1)) + 1e-6
        return torch.einsum("bnd,bde->bne", q, context) / weight[..., None]


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.qkv, self.mix = nn.LayerNorm(d), nn.Linear(d, 3 * d), LinearAttention()

    def forward(self, x):
        return x + self.mix(*self.qkv(self.norm(x)).chunk(3, -1))


def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), Block(16), Block(16), nn.Linear(16, 3))
    with torch.no_grad():
        net[2].qkv.weight.mul_(16)
        net[2].qkv.bias[32:].add_(8)
    return net


def batch():
    torch.manual_seed(1)
    return torch.randn(2, 2048, 6), torch.randint(3, (2,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).mean(1), batch[1])


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["2.mix"],
    "op": "bmm,einsum",
    "fp32_fix": ["2.mix"],
    "scaler": "none",
    "source": "mit-han-lab/efficientvit#110; facebookresearch/xformers#98",
}
