"""The classic experiment of mixed precision: a small CNN, two convolutions and two linear layers, Adam, batch 256.

`digits` trains on scikit-learn's handwritten digits, `generated` on pictures of 3x32x32 made here, and
`small_loss` on the digits with a loss so small that its gradients are zero in fp16 without loss scaling.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

BATCH = 256
CLASSES = 10
#: The largest gradient of a mean over 256 samples is 1/256; times this it is below half of fp16's smallest number.
SMALL = 2.0**-17
#: Noise over templates of the generated pictures: hard enough that no network gets them all right.
NOISE = 6.0


class CNN(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self, channels, side):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(32 * (side // 4) ** 2, 64), nn.Linear(64, CLASSES)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def _real():
    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    return x, torch.tensor(found.target)


def _made():
    generator = torch.Generator().manual_seed(0)
    templates = nn.functional.interpolate(torch.randn(CLASSES, 3, 8, 8, generator=generator), scale_factor=4)
    y = torch.randint(0, CLASSES, (6 * BATCH,), generator=generator)
    return templates[y] + NOISE * torch.randn(len(y), 3, 32, 32, generator=generator), y


def _cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def _accuracy(model, batch):
    return (model(batch[0]).argmax(-1) == batch[1]).float().mean()


def _target(data, channels, side, lr, factor=1.0):
    """Return the experiment; a quarter of the pictures is kept for validation, always the same."""
    x, y = data
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    held, rest = order[: len(x) // 4], order[len(x) // 4 :]
    shuffled = rest[torch.randperm(len(rest))]  # by the run's own seed
    whole = [shuffled[i : i + BATCH] for i in range(0, len(shuffled) - BATCH + 1, BATCH)]
    return {
        "model": CNN(channels, side),
        "batches": [(x[rows], y[rows]) for rows in whole],
        "loss": lambda model, batch: factor * _cross_entropy(model, batch),
        "optimizer": lambda model: torch.optim.Adam(model.parameters(), lr=lr),
        "metric": _accuracy,
        "validation": [(x[held], y[held])],
    }


def digits():
    return _target(_real(), 1, 8, 2e-3)


def generated():
    return _target(_made(), 3, 32, 1e-3)


def small_loss():
    return _target(_real(), 1, 8, 2e-3, SMALL)
