"""ALiBi added to bf16 scores: at a distance of a thousand neighbours get the same bias."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d, slope):
        super().__init__()
        self.qkv, self.out, self.slope = nn.Linear(d, 3 * d), nn.Linear(d, d), slope

    def forward(self, x, offset):
        q, k, v = self.qkv(x).chunk(3, -1)
        places = torch.arange(x.shape[1]) + offset
        bias = (self.slope * places).to(q.dtype)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(1, 2) + bias
        return self.out(scores.softmax(-1) @ v)


class Net(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.embed, self.near, self.far = nn.Embedding(30, d), Attention(d, 0.5), Attention(d, 0.5)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 30)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.near(x, 0)
        x = x + self.far(x, 3000)
        return self.head(self.norm(x))


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randint(30, (6, 32)), torch.randint(30, (192,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "bfloat16",
    "layers": ["far"],
    "op": "add,_to_copy,mul,bmm,_softmax",
    "fp32_fix": ["far"],
    "scaler": "none",
    "source": "mechanism: ALiBi bias cast to bf16 (MosaicML and BLOOM keep it in float32)",
}
