"""The three steps that recording is timed on: a CNN, a transformer and a model of many tiny operations."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Workload:
    name: str
    model: nn.Module
    step: Callable[[], None]


class _Basic(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.down = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.down(x))


def resnet18(device: str = "cpu", batch: int = 8, size: int = 128) -> Workload:
    widths = [
        (64, 64, 1),
        (64, 64, 1),
        (64, 128, 2),
        (128, 128, 1),
        (128, 256, 2),
        (256, 256, 1),
        (256, 512, 2),
        (512, 512, 1),
    ]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    model = nn.Sequential(*stem, *(_Basic(*width) for width in widths), *head).to(device)
    images, labels = torch.randn(batch, 3, size, size, device=device), torch.arange(batch, device=device)
    return Workload(
        "resnet18", model, lambda: _train(model, lambda: functional.cross_entropy(model(images), labels))
    )


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class _Decoder(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(vocabulary, width), nn.Embedding(256, width)
        self.blocks = nn.Sequential(*(_Block(width, 6) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.embed(tokens) + self.position(places))))


def decoder(device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> Workload:
    model = _Decoder(8192, 384, 6).to(device, dtype)
    tokens = torch.randint(0, 8192, (4, 257), device=device)

    def loss() -> Tensor:
        logits = model(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return Workload("decoder", model, lambda: _train(model, loss))


class _Cell(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inputs, self.hidden = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (self.inputs(x) + self.hidden(h)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class _Small(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.cell = _Cell(width)
        self.tail = nn.Sequential(
            *(layer for _ in range(20) for layer in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()))
        )

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[1:])
        for item in x:
            h, c = self.cell(item, h, c)
        return self.tail(h)


def small(device: str = "cpu") -> Workload:
    model = _Small().to(device)
    x = torch.randn(32, 16, 32, device=device)
    return Workload("lstm", model, lambda: _train(model, lambda: model(x).square().mean()))


def _train(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    model.zero_grad()
    loss().backward()


WORKLOADS = {"resnet18": resnet18, "decoder": decoder, "lstm": small}
