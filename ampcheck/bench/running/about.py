"""What has to be known about a target beside what is measured: its device, and what had to be assumed."""

import torch

from ampcheck.observe.step import Step
from ampcheck.targets.spec import ZOOS, Target


def device_of(target: Target) -> torch.device:
    """Return where the model is."""
    return Step(target.model, None, target.loss).device


def notes_of(target: Target) -> tuple[str, ...]:
    """Return what had to be assumed, in sentences."""
    stand_in = ("the loss is ampcheck's stand-in",) if target.stand_in_loss else ()
    own = target.optimizer is not None
    optimizer = () if own else ("the optimizer is AdamW with its defaults: the target names none",)
    return (*target.notes, *stand_in, *optimizer)


def has_random_labels(target: Target) -> bool:
    """Tell whether training can only memorise: the loss or, for a model of a zoo, the labels are made up."""
    return target.stand_in_loss or target.name.partition(":")[0] in ZOOS


def has_tf32(device: torch.device) -> bool:
    """Tell whether a device has TF32 units."""
    ampere = (8, 0)
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= ampere
