"""The models that are timed: a CNN, a decoder and many tiny operations, at sizes that fill a GPU or a test."""

from collections.abc import Callable

import torch
import workloads
from torch import Tensor, nn
from torch.nn import functional
from workloads import Workload

from ampcheck.targets.spec import Target


class Bottleneck(nn.Module):
    """A block of resnet50."""

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * inner
        self.conv1, self.bn1 = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        return functional.relu(self.bn3(self.conv3(y)) + self.down(x))


def resnet50(*, small: bool) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return resnet50 and a batch of 64 images of 224 pixels."""
    blocks, width = [], 64
    for inner, count in ((64, 3), (128, 4), (256, 6), (512, 3)) if not small else ((64, 1),):
        for at in range(count):
            blocks.append(Bottleneck(width, inner, 2 if at == 0 and inner > 64 else 1))
            width = 4 * inner
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))
    count, size = (2, 32) if small else (64, 224)
    return model, (torch.randn(count, 3, size, size), torch.arange(count))


def decoder(layers: int, width: int, *, small: bool) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a decoder of the given size and a batch of 8 texts of 256 tokens."""
    layers, width, words, count, length = (1, 48, 64, 2, 16) if small else (layers, width, 32768, 8, 256)
    tokens = torch.arange(count * (length + 1)).reshape(count, -1) * 7 % words
    return workloads._Decoder(words, width, layers), (tokens[:, :-1], tokens[:, 1:])


def mlp(*, small: bool) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return wide linear layers and a batch."""
    width, count = (32, 8) if small else (4096, 4096)
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers), (torch.randn(count, width), torch.arange(count) % width)


def classes(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of a classifier, also of words in a row."""
    out = model(batch[0])
    return functional.cross_entropy(out.flatten(0, -2) if out.dim() > 2 else out, batch[1].flatten())


MODELS: dict[str, Callable[..., tuple[nn.Module, tuple[Tensor, Tensor]]]] = {
    "resnet50, 64 images": resnet50,
    "decoder, 12 layers": lambda *, small: decoder(12, 768, small=small),
    "linear layers": mlp,
}


def _built(name: str, device: str, *, small: bool) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """Return a model and its batches, made where they are used: on a GPU that is far quicker."""
    torch.manual_seed(0)
    with torch.device(device):
        model, batch = MODELS[name](small=small)
    return model, [batch]


def target(name: str, device: str, *, small: bool) -> Target:
    """Return a model as the bench takes it."""
    return Target(name, *_built(name, device, small=small), classes)


def workload(name: str, device: str, *, small: bool) -> Workload:
    """Return a step that is timed: under autocast in bf16, or without it where there are many tiny operations."""
    if name == "many tiny operations":
        return workloads.small(device)
    model, (batch,) = _built(name, device, small=small)

    def step() -> None:
        model.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            loss = classes(model, batch)
        loss.backward()

    return Workload(name, model, step)
