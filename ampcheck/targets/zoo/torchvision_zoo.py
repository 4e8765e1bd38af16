"""Models of torchvision by name, with random weights and batches made for their family."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ampcheck.errors import TargetError
from ampcheck.targets.nested import move
from ampcheck.targets.spec import Options, Spec, Target, close
from ampcheck.targets.userfile import explained
from ampcheck.targets.vision import classification, detection, flow, input_shape, segmentation
from ampcheck.targets.weights import place, weights_note
from ampcheck.targets.zoo import library

IMAGENET_CLASSES, SEGMENTATION_CLASSES, VIDEO_CLASSES, DETECTION_CLASSES, KEYPOINTS = 1000, 21, 400, 91, 17
BOXES_PER_IMAGE = 2
#: Detectors scale images to 800 pixels by themselves; that would take minutes on a laptop.
DETECTION_SIDE = 320
#: Video models whose last pooling or position embeddings want exactly 16 frames of 224 pixels.
FIXED_CLIPS = ("s3d", "mvit")
#: Proposals per image that --small trains the heads of detectors on, instead of 512.
SMALL_PROPOSALS = 32
#: Starts of names to the side of a picture that they need, with --small too.
SIDES = {"inception": 299, "maxvit": 224, "raft": 128, "ssd300": 300, "ssdlite": 320}


@dataclass(frozen=True, slots=True)
class Family:
    """How models of one kind are fed and trained."""

    sizes: tuple[int, ...]
    batch: int
    loss: Callable[[Any, Any], torch.Tensor]
    make_batch: Callable[[tuple[int, ...], str], Any]
    labels: str


def from_torchvision(spec: Spec, options: Options) -> Target:
    """Return a torchvision model with a batch and the loss of its family."""
    models = library("torchvision.models", "torch torchvision")
    name = _known(spec.name, models.list_models())
    builder = models.get_model_builder(name)
    family = _family(name, builder.__module__, small=options.small)
    shape = input_shape(options, family.sizes, family.batch)
    if name.startswith(FIXED_CLIPS) and shape[1:] != family.sizes:
        raise TargetError(f"{name} takes clips of {'x'.join(map(str, family.sizes))} only, got {shape[1:]!r}")
    try:
        model = builder(**_arguments(name, family, shape, small=options.small))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TargetError(f"torchvision cannot build {name} for input {shape}: {explained(error)}") from error
    model = place(model.train(), options)
    return Target(
        name=spec.text,
        model=model,
        batches=[move(family.make_batch(shape, name), options.device)],
        loss=family.loss,
        notes=(weights_note(options), f"images are random, {'x'.join(map(str, shape))}", family.labels),
    )


def _known(name: str, names: list[str]) -> str:
    if name.startswith("quantized_"):
        plain = name.removeprefix("quantized_")
        raise TargetError(f"{name} computes in int8 and cannot be trained; audit torchvision:{plain}")
    trainable = [known for known in names if not known.startswith("quantized_")]
    if name not in trainable:
        raise TargetError(f"torchvision has no model {name!r}{close(name, trainable)}")
    return name


def _family(name: str, module: str, *, small: bool) -> Family:
    special = next((side for start, side in SIDES.items() if name.startswith(start)), None)
    side = special or (64 if small else 224)
    if ".detection." in module:
        side = special or (160 if small else DETECTION_SIDE)
        return Family((3, side, side), 2, detection, _detection_batch, "boxes and labels are random")
    if ".segmentation." in module:
        return Family((3, side, side), 2, segmentation, _segmentation_batch, "labels of pixels are random")
    if ".video." in module:
        sizes = (3, 8, 64, 64) if small else (3, 16, 112, 112)
        if name.startswith(FIXED_CLIPS):
            sizes = (3, 16, 224, 224)
        return Family(sizes, 2, classification, partial(_labelled, VIDEO_CLASSES), "labels are random")
    if ".optical_flow." in module:
        return Family((3, side, side), 2, flow, _flow_batch, "the target flow is random")
    return Family(
        (3, side, side), 4, classification, partial(_labelled, IMAGENET_CLASSES), "labels are random"
    )


def _arguments(name: str, family: Family, shape: tuple[int, ...], *, small: bool) -> dict[str, Any]:
    """Return the arguments a builder needs so that nothing is downloaded and the input fits."""
    arguments: dict[str, Any] = {"weights": None}
    if family.loss in (detection, segmentation):
        arguments["weights_backbone"] = None
    if family.loss is detection and not name.startswith("ssd"):
        arguments |= {"min_size": min(shape[-2:]), "max_size": 2 * max(shape[-2:])}
    if small and "rcnn_" in name:
        arguments["box_batch_size_per_image"] = SMALL_PROPOSALS
    if name.startswith("vit_"):
        arguments["image_size"] = shape[-1]
    if name.startswith("maxvit"):
        arguments["input_size"] = shape[-2:]
    if name in ("googlenet", "inception_v3"):
        arguments["init_weights"] = True
    return arguments


def _labelled(classes: int, shape: tuple[int, ...], _name: str) -> Any:
    return torch.randn(shape), torch.randint(0, classes, shape[:1])


def _segmentation_batch(shape: tuple[int, ...], _name: str) -> Any:
    return torch.randn(shape), torch.randint(0, SEGMENTATION_CLASSES, (shape[0], *shape[2:]))


def _flow_batch(shape: tuple[int, ...], _name: str) -> Any:
    truth = torch.randn(shape[0], 2, *shape[2:])
    return torch.rand(shape) * 2 - 1, torch.rand(shape) * 2 - 1, truth


def _detection_batch(shape: tuple[int, ...], name: str) -> Any:
    images = [torch.rand(shape[1:]) for _ in range(shape[0])]
    return images, [_detection_target(shape[-2], shape[-1], name) for _ in images]


def _detection_target(height: int, width: int, name: str) -> dict[str, torch.Tensor]:
    """Return boxes between a quarter and a half of the image, with what masks and keypoints need besides."""
    count = BOXES_PER_IMAGE
    scale = torch.tensor([width, height, width, height])
    corner = torch.rand(count, 2) / 2
    boxes = torch.cat([corner, corner + 0.25 + torch.rand(count, 2) / 4], dim=1) * scale
    classes = 2 if name.startswith("keypoint") else DETECTION_CLASSES
    target = {"boxes": boxes, "labels": torch.randint(1, classes, (count,))}
    if name.startswith("maskrcnn"):
        target["masks"] = torch.randint(0, 2, (count, height, width), dtype=torch.uint8)
    if name.startswith("keypoint"):
        within = boxes[:, None, :2] + torch.rand(count, KEYPOINTS, 2) * (
            boxes[:, None, 2:] - boxes[:, None, :2]
        )
        target["keypoints"] = torch.cat([within, torch.ones(count, KEYPOINTS, 1)], dim=2)
    return target
