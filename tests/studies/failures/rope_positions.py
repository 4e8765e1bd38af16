"""Rotary embeddings whose positions take the dtype of the queries: bf16 counts to 256 and then in twos and fours.

Modelled on EleutherAI/gpt-neox#1003. The task is to name the token a few places back, which needs positions and
nothing else.
"""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, LENGTH, BACK = 16, 64, 2, 640, 3


class Rotary(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("frequencies", 100.0 ** (-torch.arange(0, size, 2) / size))

    def forward(self, x):
        positions = torch.arange(x.shape[-2]).type_as(x)
        angles = positions[:, None] * self.frequencies.type_as(x)
        cos, sin = angles.cos(), angles.sin()
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = Rotary(WIDTH // HEADS)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        heads = self.qkv(x).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2)
        q, k, v = heads.chunk(3, 1)
        mixed = functional.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(x + self.attention(self.norm(x)))


def model():
    torch.manual_seed(0)
    made = Decoder()
    turn = BACK * made.attention.rotary.frequencies
    with torch.no_grad():  # a head that knows already how far back to look, and has yet to learn what for
        query, key, _ = made.attention.qkv.bias.view(3, HEADS, 2, -1)
        query[:], key[:, 0], key[:, 1] = torch.tensor([[2.0], [0.0]]), 2 * turn.cos(), 2 * turn.sin()
    return made


def batch():
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCABULARY, (2, LENGTH), generator=draw) for _ in range(8)]


def loss(model, batch):
    logits = model(batch)[:, BACK:]
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, :-BACK].flatten())


def optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=3e-3)
