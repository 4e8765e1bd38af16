"""Distillation scores normalised by (max - min + 1e-8): equal teacher scores give 0/0 in fp16."""

import torch
from torch import nn


class MinMax(nn.Module):
    def forward(self, s):
        lo, hi = s.min(-1, keepdim=True).values, s.max(-1, keepdim=True).values
        return (s - lo) / (hi - lo + 1e-8)


class Ranker(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.embed, self.query = nn.Embedding(40, d), nn.Linear(d, d)
        self.teacher, self.normalise = nn.Embedding(40, d), MinMax()

    def forward(self, q, docs):
        s = torch.einsum("bd,bnd->bn", self.query(self.embed(q)), self.embed(docs))
        with torch.no_grad():
            t = torch.einsum("bd,bnd->bn", self.teacher(q), self.teacher(docs))
            t = self.normalise(t)
        return s, t


def model():
    torch.manual_seed(0)
    return Ranker()


def batch():
    torch.manual_seed(1)
    docs = torch.randint(0, 40, (8, 4))
    docs[3] = docs[3, :1]
    return torch.randint(0, 40, (8,)), docs


def loss(m, b):
    s, t = m(*b)
    return nn.functional.kl_div(
        nn.functional.log_softmax(s, -1), nn.functional.softmax(t, -1), reduction="batchmean"
    )


TRUTH = {
    "kind": "forward-underflow",
    "alt_kinds": ["forward-overflow"],
    "dtype": "float16",
    "layers": ["normalise"],
    "op": "div,add",
    "fp32_fix": ["normalise"],
    "scaler": "none",
    "source": "lightonai/pylate#239; lightonai/pylate#240",
}
