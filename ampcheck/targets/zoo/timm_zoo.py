"""Models of timm by name, with random weights and random images of the size they were made for."""

from typing import Any

import torch

from ampcheck.errors import TargetError
from ampcheck.targets.losses import stand_in_of_model
from ampcheck.targets.lossfinder import STAND_IN_NOTE, probe
from ampcheck.targets.nested import move
from ampcheck.targets.spec import Options, Spec, Target, close
from ampcheck.targets.userfile import explained
from ampcheck.targets.vision import classification, input_shape
from ampcheck.targets.weights import place, weights_note
from ampcheck.targets.zoo import library

DEFAULT_SIZES = (3, 224, 224)
#: Pictures above this side are given two at a time, below four: about the same work.
LARGE_SIDE = 256
#: Sides that --small tries, in this order, before a model's own: not every architecture divides every size.
SMALL_SIDES = (64, 128)


def from_timm(spec: Spec, options: Options) -> Target:
    """Return a timm model with random images, and random labels where it classifies."""
    timm = library("timm")
    name = spec.name
    if not timm.is_model(name):
        raise TargetError(f"timm has no model {name!r}{close(name, timm.list_models())}")
    sizes = _own_sizes(timm, name)
    model, shape = _fitting(timm, name, sizes, options)
    model = place(model.train(), options)
    images = torch.randn(shape)
    notes: tuple[str, ...] = (weights_note(options), f"images are random, {'x'.join(map(str, shape))}")
    classes = getattr(model, "num_classes", 0)
    if not classes:
        batches = [move(images, options.device)]
        notes += (STAND_IN_NOTE,)
        return Target(spec.text, model, batches, stand_in_of_model, stand_in_loss=True, notes=notes)
    batch = move((images, torch.randint(0, classes, shape[:1])), options.device)
    return Target(spec.text, model, [batch], classification, notes=(*notes, "labels are random"))


def _own_sizes(timm: Any, name: str) -> tuple[int, ...]:
    """Return channels, height and width that a model was made for."""
    if not timm.is_model_pretrained(name):
        return DEFAULT_SIZES
    known = timm.get_pretrained_cfg(name, allow_unregistered=False)
    return tuple(known.input_size) if known is not None and known.input_size else DEFAULT_SIZES


def _fitting(timm: Any, name: str, sizes: tuple[int, ...], options: Options) -> tuple[Any, tuple[int, ...]]:
    """Return the model with an input shape that it takes."""
    batch = 2 if max(sizes) > LARGE_SIDE else 4
    wanted = input_shape(options, sizes, batch)
    if options.small and options.input_shape is None:
        for side in SMALL_SIDES:
            shape = (options.batch_size or 4, sizes[0], side, side)
            model = _try(timm, name, shape, sizes)
            if not isinstance(model, Exception):
                return model, shape
    model = _try(timm, name, wanted, sizes)
    if isinstance(model, Exception):
        raise TargetError(
            f"timm cannot run {name} on {'x'.join(map(str, wanted))}: {explained(model)}"
        ) from model
    return model, wanted


def _try(timm: Any, name: str, shape: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    """Return a model that takes the shape, or the error that says why there is none."""
    try:
        if shape[1:] == sizes:
            return timm.create_model(name, pretrained=False)
        model = _resized(timm, name, shape)
        probe(model.eval(), torch.zeros(1, *shape[1:]))
    except Exception as error:  # noqa: BLE001
        return error
    return model


def _resized(timm: Any, name: str, shape: tuple[int, ...]) -> Any:
    """Return a model made for another size; only architectures of a fixed size need it."""
    arguments = {} if shape[1] == DEFAULT_SIZES[0] else {"in_chans": shape[1]}
    try:
        return timm.create_model(name, pretrained=False, img_size=shape[-2:], **arguments)
    except TypeError:
        return timm.create_model(name, pretrained=False, **arguments)
