"""A decoder of twelve layers with one that overflows in fp16, for the time to a verified plan."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH = 1000, 256, 4, 12, 128


class Block(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.gain = gain
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(*heads.chunk(3, 1), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        wide = self.up(self.norm2(x)) * self.gain
        return x + self.down(functional.relu(wide * wide) / self.gain**2)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(600.0 if index == 8 else 1.0) for index in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def model():
    torch.manual_seed(0)
    return Decoder()


def batch():
    return torch.randint(0, VOCABULARY, (4, LENGTH), generator=torch.Generator().manual_seed(1))


def loss(model, batch):
    return functional.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
