"""A small convolutional network that trains in fp16 as it does in FP32."""

import torch
from torch import nn


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def model():
    return nn.Sequential(block(3, 8), block(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))


def batch():
    return torch.randn(8, 3, 12, 12), torch.randint(4, (8,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
