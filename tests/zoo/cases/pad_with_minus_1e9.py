"""Scores are padded with -1e9, a value that float16 does not have."""

import torch
from torch import nn


class PaddedScores(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.score = nn.Linear(d, 1)

    def forward(self, x, total):
        scores = self.score(x).squeeze(-1)
        return nn.functional.pad(scores, (0, total - scores.shape[1]), value=-1e9)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rank = nn.Linear(5, 16), PaddedScores(16)

    def forward(self, x):
        return self.rank(torch.relu(self.embed(x)), 12)


def model():
    torch.manual_seed(0)
    return Ranker()


def batch():
    torch.manual_seed(1)
    return torch.randn(4, 9, 5), torch.randint(9, (4,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "dtype-error",
    "dtype": "float16",
    "layers": ["rank"],
    "op": "constant_pad_nd,fill_,pad",
    "fp32_fix": ["rank"],
    "scaler": "none",
    "source": "facebookresearch/fairseq#3575; NVIDIA/apex#1052",
}
