"""Segment sums into a float32 accumulator: index_add_ refuses the half messages of an autocast layer."""

import torch
from torch import nn


class SegmentSum(nn.Module):
    def forward(self, messages, segment):
        total = torch.zeros(5, messages.shape[1])
        return total.index_add_(0, segment, messages)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.point, self.gather, self.out = nn.Linear(3, 16), SegmentSum(), nn.Linear(16, 4)

    def forward(self, x, segment):
        return self.out(self.gather(torch.relu(self.point(x)), segment))


def model():
    torch.manual_seed(0)
    return PointNet()


def batch():
    torch.manual_seed(1)
    return torch.randn(30, 3), torch.arange(30) % 5, torch.randint(4, (5,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0], batch[1]), batch[2])


TRUTH = {
    "kind": "dtype-error",
    "dtype": "float16",
    "layers": ["gather"],
    "op": "index_add,index_add_",
    "fp32_fix": ["gather"],
    "scaler": "none",
    "source": "NVIDIA/apex#455",
}
