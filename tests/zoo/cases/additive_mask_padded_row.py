"""(1 - mask) * -1e9 is -inf in half: a row that is padding throughout becomes NaN instead of uniform."""

import torch
from torch import nn


class Pooling(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.score = nn.Linear(d, 1)

    def forward(self, x, mask):
        scores = self.score(x).squeeze(-1)
        scores = scores + (1.0 - mask.to(scores.dtype)) * -1e9
        return (scores.softmax(-1)[..., None] * x).sum(1)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.pool, self.out = nn.Linear(5, 16), Pooling(16), nn.Linear(16, 3)

    def forward(self, x, mask):
        return self.out(self.pool(torch.tanh(self.embed(x)), mask))


def model():
    torch.manual_seed(0)
    return Reader()


def batch():
    torch.manual_seed(1)
    mask = torch.arange(6)[None] < torch.tensor([6, 4, 0, 3])[:, None]
    return torch.randn(4, 6, 5), mask.float(), torch.randint(3, (4,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0], batch[1]), batch[2])


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["pool"],
    "op": "mul",
    "fp32_fix": ["pool"],
    "scaler": "none",
    "source": "huggingface/transformers#17306; facebookresearch/fairseq#3575",
}
