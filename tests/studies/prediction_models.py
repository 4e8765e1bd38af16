"""The models of the prediction study: random weights, generated data, nothing downloaded."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ampcheck.observe.step import Step
from ampcheck.targets import Options, load
from ampcheck.targets.vision import detection

SSD_SIDE = 300
#: Steps of optimisation before the trained detector is looked at: about a minute, and the loss falls.
SSD_STEPS = 12
SSD_RATE = 1e-3
#: Gradients of an untrained VGG without normalisation are large; clipped, the first steps do not diverge.
SSD_CLIP = 10.0


class Case(NamedTuple):
    """A named step, built when asked for; it is run inside `settings()`."""

    name: str
    build: Callable[[], Step]
    scales: Sequence[int] = range(0, 25, 4)
    settings: Callable[[], AbstractContextManager[Any]] = nullcontext


def zoo(spec: str, *, small: bool = True, **options: Any) -> Case:
    def build() -> Step:
        target = load(spec, Options(small=small, **options))
        return Step(target.model, target.batch(0), target.loss)

    return Case(spec + (" --small" if small else ""), build)


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 64)
        self.lstm = nn.LSTM(64, 64, 2, batch_first=True)
        self.head = nn.Linear(64, 500)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(tokens))[0])


def _tag(model: nn.Module, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def _lstm() -> Step:
    torch.manual_seed(0)
    return Step(_Tagger(), torch.randint(0, 500, (8, 33)), _tag)


def rectangles(count: int) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Return pictures of three coloured rectangles on noise; the colour is the class."""
    images, targets = [], []
    for _ in range(count):
        image = torch.rand(3, SSD_SIDE, SSD_SIDE) * 0.2
        sizes = torch.randint(60, 180, (3, 2))
        corners = (torch.rand(3, 2) * (SSD_SIDE - sizes)).long()
        colours = torch.randint(0, 3, (3,))
        for (width, height), (x, y), colour in zip(
            sizes.tolist(), corners.tolist(), colours.tolist(), strict=True
        ):
            image[:, y : y + height, x : x + width] = 0.1
            image[colour, y : y + height, x : x + width] = 0.9
        images.append(image)
        targets.append({"boxes": torch.cat([corners, corners + sizes], 1).float(), "labels": colours + 1})
    return images, targets


def _detector(steps: int) -> Callable[[], Step]:
    def build() -> Step:
        from torchvision.models.detection import ssd300_vgg16

        torch.manual_seed(0)
        model = ssd300_vgg16(weights=None, weights_backbone=None).train()
        optimizer = torch.optim.SGD(model.parameters(), SSD_RATE, momentum=0.9, weight_decay=5e-4)
        for _ in range(steps):
            optimizer.zero_grad()
            detection(model, rectangles(2)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), SSD_CLIP)
            optimizer.step()
        optimizer.zero_grad()
        return Step(model, rectangles(2), detection)

    return build


SSD = "SSD300 VGG16, random weights"
SSD_TRAINED = f"SSD300 VGG16, after {SSD_STEPS} steps"
#: Scales below one show where the curve of the detector would be if its gradients were smaller.
_WIDE = (-16, -8, *range(0, 25, 4))
#: oneDNN runs a float32 LSTM as one operation; nothing inside could be compared with the fp16 run.
_STEPWISE = lambda: torch.backends.mkldnn.flags(enabled=False)  # noqa: E731

CASES = (
    Case(SSD, _detector(0), _WIDE),
    Case(SSD_TRAINED, _detector(SSD_STEPS), _WIDE),
    zoo("torchvision:resnet18"),
    zoo("torchvision:mobilenet_v3_small"),
    zoo("torchvision:densenet121"),
    zoo("timm:vit_tiny_patch16_224"),
    zoo("transformers:bert"),
    zoo("transformers:gpt2"),
    zoo("transformers:t5"),
    Case("nn.LSTM, 2 layers of 64", _lstm, settings=_STEPWISE),
)
