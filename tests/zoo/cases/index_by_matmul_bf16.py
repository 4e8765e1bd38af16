"""The index of a code is found as one-hot times arange: the product rounds to bf16, 301 becomes 302."""

import torch
from torch import nn


class HardLookup(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.table = nn.Embedding(n, d)
        self.register_buffer("numbers", torch.arange(n, dtype=torch.float32))

    def forward(self, logits):
        picked = (logits == logits.amax(-1, keepdim=True)).float()
        index = (picked @ self.numbers).long().clamp(max=len(self.numbers) - 1)
        return self.table(index)


class Retriever(nn.Module):
    def __init__(self):
        super().__init__()
        self.lookup, self.out = HardLookup(600, 16), nn.Linear(16, 4)

    def forward(self, scores):
        return self.out(self.lookup(scores))


def model():
    torch.manual_seed(0)
    return Retriever()


def batch():
    torch.manual_seed(1)
    return torch.randn(48, 600), torch.randint(4, (48,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "precision-loss",
    "dtype": "bfloat16",
    "layers": ["lookup"],
    "op": "mv,mm,matmul,_to_copy",
    "fp32_fix": ["lookup"],
    "scaler": "none",
    "source": "RosettaCommons/foundry#236 (indices above 256 alias in bf16); pytorch/pytorch#137774",
}
