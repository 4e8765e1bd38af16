"""A T5-like encoder whose gated feed-forward makes products above 65504, as T5 and mT5 checkpoints do.

Modelled on huggingface/transformers#10956. The gain of the last block stands for what
pre-training makes of it.
"""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HIDDEN, LENGTH = 64, 48, 96, 24


class RMSNorm(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.weight = nn.Parameter(torch.full((WIDTH,), gain))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RMSNorm(1.0)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(functional.scaled_dot_product_attention(q, k, v))


class GatedFeedForward(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.norm = RMSNorm(gain)
        self.wi_0, self.wi_1 = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.wo = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        h = self.norm(x)
        return x + self.wo(functional.gelu(self.wi_0(h)) * self.wi_1(h))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        gains = (1.0, 1.0, 1.0, 400.0)
        self.blocks = nn.Sequential(*(nn.Sequential(SelfAttention(), GatedFeedForward(g)) for g in gains))
        self.norm, self.head = RMSNorm(1.0), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embed(tokens))))


def model():
    torch.manual_seed(0)
    return Encoder()


def batch():
    draw = torch.Generator().manual_seed(1)
    tokens = [torch.randint(0, VOCABULARY, (8, LENGTH), generator=draw) for _ in range(8)]
    return [(t, (3 * t + 1) % VOCABULARY) for t in tokens]


def loss(model, batch):
    tokens, labels = batch
    return functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)
