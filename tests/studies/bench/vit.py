"""A small vision transformer: pictures of 3x64x64 in patches of 8x8, four blocks of width 128."""

import torch
from torch import nn


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a layer norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        size, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(size, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).reshape(size, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """Patches, blocks, and the mean of the tokens."""

    def __init__(self, width=128, depth=4, heads=4):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))


def model():
    return ViT()


def batch(batch_size=8):
    return torch.randn(batch_size, 3, 64, 64), torch.randint(0, 16, (batch_size,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
