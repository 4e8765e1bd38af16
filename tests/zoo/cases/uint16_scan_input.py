"""Raw 16-bit scanner images, not rescaled: counts above 65519 become inf in the cast before the first
convolution.
"""

import torch
from torch import nn


class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, 2, 1, bias=False)
        self.norm = nn.InstanceNorm2d(8)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


def model():
    torch.manual_seed(0)
    net = nn.Sequential(Stem(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net.append(nn.Linear(16, 2))
    with torch.no_grad():
        net[0].conv.weight.mul_(0.1)
    return net


def batch():
    torch.manual_seed(1)
    return (torch.rand(4, 1, 32, 32) * 90000).clamp(max=65535.0), torch.randint(2, (4,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "forward-overflow",
    "dtype": "float16",
    "layers": ["0.conv"],
    "op": "_to_copy,convolution,conv2d",
    "fp32_fix": ["0.conv"],
    "scaler": "none",
    "source": "mechanism: unnormalised 16-bit input; float16 ends at 65504",
}
