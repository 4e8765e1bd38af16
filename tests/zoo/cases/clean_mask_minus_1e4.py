"""A mask of -1e4, which float16 holds, as BERT's first implementations have it."""

import torch
from torch import nn


class Masked(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, keep):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(1, 2) + (
            1.0 - keep[:, None, :].to(q.dtype)
        ) * -10000.0
        return x + self.out(scores.softmax(-1) @ v)


class Net(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.embed, self.attend, self.norm, self.head = (
            nn.Embedding(30, d),
            Masked(d),
            nn.LayerNorm(d),
            nn.Linear(d, 4),
        )

    def forward(self, tokens, keep):
        return self.head(self.norm(self.attend(self.embed(tokens), keep))[:, 0])


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    keep = (torch.arange(12)[None] < torch.tensor([12, 9, 5, 2])[:, None]).float()
    return torch.randint(30, (4, 12)), keep, torch.randint(4, (4,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0], batch[1]), batch[2])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: BERT's additive mask of -10000",
}
