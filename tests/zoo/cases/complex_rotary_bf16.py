"""Llama's complex rotary embedding: view_as_complex does not take bf16."""

import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, d, length):
        super().__init__()
        angles = torch.arange(length)[:, None] * 100.0 ** (-torch.arange(0, d, 2) / d)
        self.register_buffer("turns", torch.stack([angles.cos(), angles.sin()], -1))

    def forward(self, x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        turned = torch.view_as_real(pairs * torch.view_as_complex(self.turns))
        return turned.flatten(-2).to(x.dtype)


class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.embed, self.q, self.k = nn.Embedding(30, d), nn.Linear(d, d), nn.Linear(d, d)
        self.rotary, self.head = Rotary(d, 12), nn.Linear(d, 30)

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k = self.rotary(self.q(x)), self.rotary(self.k(x))
        return self.head((q @ k.transpose(1, 2) / 4).softmax(-1) @ x)


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randint(30, (4, 12)), torch.randint(30, (48,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1])


TRUTH = {
    "kind": "dtype-error",
    "dtype": "bfloat16",
    "layers": ["rotary"],
    "op": "view_as_complex",
    "fp32_fix": ["rotary"],
    "scaler": "none",
    "source": "meta-llama/llama: apply_rotary_emb calls .float() first",
}
