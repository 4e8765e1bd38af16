"""IoU of small boxes far from half's range: areas of 1e-9 become zero, and 0 / 0 is NaN."""

import torch
from torch import nn


class IoU(nn.Module):
    def forward(self, sizes, target):
        target = target.to(sizes.dtype)
        shared = torch.minimum(sizes, target)
        inter = shared[:, 0] * shared[:, 1]
        union = sizes[:, 0] * sizes[:, 1] + target[:, 0] * target[:, 1] - inter
        return 1 - inter / union


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        self.iou = IoU()

    def forward(self, x, target):
        return self.iou(self.net(x).sigmoid() * 3e-4, target)


def model():
    torch.manual_seed(0)
    return Detector()


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 8), torch.rand(32, 2) * 1e-4 + 5e-5


def loss(model, batch):
    return model(*batch).float().mean()


TRUTH = {
    "kind": "forward-underflow",
    "alt_kinds": ["forward-overflow", "precision-loss"],
    "dtype": "float16",
    "layers": ["iou"],
    "op": "mul,div,sub",
    "fp32_fix": ["iou"],
    "scaler": "none",
    "source": "facebookresearch/detr: box losses under AMP; mechanism: areas of normalised small boxes",
}
