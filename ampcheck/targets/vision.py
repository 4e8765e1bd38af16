"""What models of images share: shapes of inputs, random labels, and the losses they are trained with."""

from typing import Any

import torch
from torch.nn import functional

from ampcheck.errors import TargetError
from ampcheck.targets.nested import tensors
from ampcheck.targets.spec import Options

#: The weights of auxiliary classifiers, from the papers (GoogLeNet 0.3, Inception v3 0.4) and torchvision's
#: reference scripts for segmentation (0.5).
GOOGLENET_AUX, INCEPTION_AUX, SEGMENTATION_AUX = 0.3, 0.4, 0.5
#: RAFT weighs the flow after each refinement by 0.8 to the power of how many follow.
FLOW_DECAY = 0.8


def input_shape(options: Options, default: tuple[int, ...], batch: int) -> tuple[int, ...]:
    """Return the shape of an input with its batch.

    A given shape may leave out the batch, or all but height and width.
    """
    given = options.input_shape
    size = options.batch_size
    if given is None:
        return (size or batch, *default)
    if len(given) == len(("height", "width")):
        given = (*default[:-2], *given)
    if len(given) == len(default):
        return (size or batch, *given)
    if len(given) != len(default) + 1:
        raise TargetError(
            f"expected an input of {len(default)} sizes such as {'x'.join(map(str, default))}, "
            f"or one more for the batch, got {'x'.join(map(str, given))}"
        )
    if size not in (None, given[0]):
        raise TargetError(f"--batch-size {size} and --input {'x'.join(map(str, given))} disagree")
    return given


def classification(model: Any, batch: Any) -> torch.Tensor:
    """Return the cross entropy, with the auxiliary heads of Inception, GoogLeNet and distilled models."""
    images, labels = batch
    output = model(images)
    weights = {"InceptionOutputs": INCEPTION_AUX, "GoogLeNetOutputs": GOOGLENET_AUX}
    if isinstance(output, torch.Tensor):
        return functional.cross_entropy(output, labels)
    losses = [functional.cross_entropy(logits, labels) for logits in tensors(output)]
    aux = weights.get(type(output).__name__)
    if aux is None:
        return torch.stack(losses).mean()
    return losses[0] + aux * torch.stack(losses[1:]).sum()


def segmentation(model: Any, batch: Any) -> torch.Tensor:
    """Return the cross entropy over pixels, with the auxiliary head."""
    images, labels = batch
    output = model(images)
    loss = functional.cross_entropy(output["out"], labels)
    if "aux" in output:
        loss = loss + SEGMENTATION_AUX * functional.cross_entropy(output["aux"], labels)
    return loss


def detection(model: Any, batch: Any) -> torch.Tensor:
    """Return the sum of a detector's losses."""
    images, targets = batch
    return torch.stack([loss.float() for loss in model(images, targets).values()]).sum()


def flow(model: Any, batch: Any) -> torch.Tensor:
    """Return RAFT's loss: the distances of all refinements from the flow, later ones weighing more."""
    first, second, truth = batch
    flows = model(first, second)
    terms = [FLOW_DECAY ** (len(flows) - 1 - i) * (f - truth).abs().mean() for i, f in enumerate(flows)]
    return torch.stack(terms).sum()
