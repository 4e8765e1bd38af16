"""Label-smoothed loss summed over all tokens of a large batch: its gradients do not fit float16 at 2**16."""

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(40, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 40))


def batch():
    torch.manual_seed(1)
    return torch.randint(40, (8, 64)), torch.randint(40, (512,))


def loss(model, batch):
    logits = model(batch[0]).flatten(0, 1)
    return 60 * nn.functional.cross_entropy(logits, batch[1], label_smoothing=0.1, reduction="sum")


TRUTH = {
    "kind": "backward-overflow",
    "dtype": "float16",
    "layers": ["", "1", "3"],
    "op": "",
    "fp32_fix": [],
    "scaler": "needs-scale<=2**7",
    "source": "facebookresearch/fairseq: sum-reduced criterion, normalised only in the optimizer",
}
