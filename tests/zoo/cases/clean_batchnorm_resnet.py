"""A small residual convolution network with float32 batch norms."""

import torch
from torch import nn


class Basic(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(d, d, 3, padding=1, bias=False), nn.BatchNorm2d(d)
        self.conv2, self.bn2 = nn.Conv2d(d, d, 3, padding=1, bias=False), nn.BatchNorm2d(d)

    def forward(self, x):
        h = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(h)))


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, 2), Basic(12), Basic(12), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5)
    )


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 3, 17, 17), torch.randint(5, (16,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: batch norm in float32",
}
