"""A frozen backbone under a trained head: no gradients in most of the model."""

import torch
from torch import nn


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2)
        )
        self.backbone.requires_grad_(requires_grad=False).eval()
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.backbone(x).mean((2, 3)))


def model():
    torch.manual_seed(0)
    return Probe()


def batch():
    torch.manual_seed(1)
    return torch.randn(16, 3, 20, 20), torch.randint(4, (16,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "clean",
    "dtype": "float16",
    "layers": [],
    "op": "",
    "fp32_fix": [],
    "scaler": "none",
    "source": "control: frozen layers",
}
