"""Boxes are decoded in half at 4000 pixels, where coordinates come in steps of 2 to 4, and small boxes
are compared.
"""

import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.delta = nn.Sequential(nn.Linear(12, 32), nn.GELU()), nn.Linear(32, 2)

    def forward(self, x, anchors):
        delta = self.delta(self.body(x))
        left = anchors.to(delta.dtype) + 4 * delta[:, 0]
        width = 12 * (1 + 0.1 * delta[:, 1])
        return left, left + width


def model():
    torch.manual_seed(0)
    return Detector()


def batch():
    torch.manual_seed(1)
    anchors = 3000 + 1000 * torch.rand(64)
    return torch.randn(64, 12), anchors, anchors + 2 * torch.randn(64)


def loss(model, batch):
    left, right = model(batch[0], batch[1])
    target = batch[2]
    start = torch.maximum(left.float(), target)
    stop = torch.minimum(right.float(), target + 12)
    overlap = (stop - start).clamp(min=0)
    return (1 - overlap / (12 + right.float() - left.float() - overlap)).mean()


TRUTH = {
    "kind": "precision-loss",
    "dtype": "float16",
    "layers": [""],
    "op": "_to_copy,add,rsub",
    "fp32_fix": [],
    "scaler": "none",
    "source": "mechanism: box coordinates in half; pytorch/vision#1879 keeps BoxCoder.decode in half, "
    "pytorch/pytorch#17584 shows the steps",
}
