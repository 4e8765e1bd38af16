"""A fixed float32 blur kernel, autocast off around it, meets half activations."""

import torch
from torch import nn


class Blur(nn.Module):
    def __init__(self, channels):
        super().__init__()
        row = torch.tensor([1.0, 2.0, 1.0])
        self.register_buffer("kernel", (row[:, None] * row / 16)[None, None].repeat(channels, 1, 1, 1))

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return nn.functional.conv2d(x, self.kernel, padding=1, groups=x.shape[1])


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        Blur(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


def batch():
    torch.manual_seed(1)
    return torch.randn(4, 3, 12, 12), torch.randint(4, (4,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


TRUTH = {
    "kind": "dtype-error",
    "dtype": "float16",
    "layers": ["2"],
    "op": "",
    "fp32_fix": ["2"],
    "scaler": "none",
    "source": "mechanism: anti-aliasing filters (BlurPool, StyleGAN upfirdn2d) with autocast off",
}
