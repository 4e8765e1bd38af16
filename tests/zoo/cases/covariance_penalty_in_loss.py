"""A decorrelation penalty in the loss function multiplies half features before it divides by the batch
size.
"""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return self.net(x)


def model():
    torch.manual_seed(0)
    encoder = Encoder()
    with torch.no_grad():
        encoder.net[2].weight.mul_(80)
    return encoder


def batch():
    torch.manual_seed(1)
    return torch.randn(512, 10)


def loss(model, x):
    features = model(x)
    covariance = features.t() @ features / len(features)
    return 1e-4 * covariance.float().triu(1).abs().mean()


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": [""],
    "op": "mm,matmul",
    "fp32_fix": [],
    "scaler": "none",
    "source": "facebookresearch/vissl#543 (functional, in the loss); NVIDIA/apex#402",
}
