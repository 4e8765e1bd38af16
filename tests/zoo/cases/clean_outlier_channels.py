"""Two residual channels of 20 000, as large language models have them: big, and representable."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.mlp = (
            nn.LayerNorm(d),
            nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d)),
        )

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Lm(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(40, d), nn.Sequential(Block(d), Block(d), Block(d))
        self.norm, self.head = nn.LayerNorm(d - 2), nn.Linear(d - 2, 40)
        self.blocks[0].mlp[2].bias.data[:2] = torch.tensor([20000.0, -15000.0])

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.embed(ids))[..., 2:]))


def model():
    torch.manual_seed(0)
    return Lm()


def batch():
    torch.manual_seed(1)
    return torch.randint(40, (4, 10)), torch.randint(40, (40,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: massive activations that fit",
}
