"""A float32 key cache is filled with index_copy_ from bf16 projections."""

import torch
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.kv = nn.Linear(d, d), nn.Linear(d, 2 * d)

    def forward(self, x, cache, where):
        key, value = self.kv(x).chunk(2, -1)
        keys = cache.clone().index_copy_(1, where, key)
        return (self.q(x) @ keys.transpose(1, 2)).softmax(-1)[..., : x.shape[1]] @ value


class Decoder(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.embed, self.attention, self.head = nn.Embedding(20, d), CachedAttention(d), nn.Linear(d, 20)

    def forward(self, ids, cache):
        return self.head(self.attention(self.embed(ids), cache, torch.arange(4)))


def model():
    torch.manual_seed(0)
    return Decoder()


def batch():
    torch.manual_seed(1)
    return torch.randint(20, (2, 4)), torch.zeros(2, 8, 16), torch.randint(20, (8,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0], batch[1]).flatten(0, 1), batch[2])


TRUTH = {
    "kind": "dtype-error",
    "dtype": "bfloat16",
    "layers": ["attention"],
    "op": "index_copy,index_copy_",
    "fp32_fix": ["attention"],
    "scaler": "none",
    "source": "unslothai/unsloth-zoo#707",
}
