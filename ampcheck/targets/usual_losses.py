"""The usual loss for what a model returns: cross entropy for classes, mean square error for numbers."""

import re
from collections.abc import Mapping
from typing import Any

import torch

from ampcheck.targets.inputs import Shapes
from ampcheck.targets.losses import PREDICTION_KEYS
from ampcheck.targets.nested import tensors

CLASSES = re.compile(r"classes|labels|vocab|tags|n_chars|out_dim|num_outputs|n_actions")
_CLASSIFIES = re.compile(
    r"classif|resnet|cnn|vgg|vit|recogni|tagger|languagemodel|gpt|lm$|bert", re.IGNORECASE
)


def loss_for(prediction: torch.Tensor, target: Any, call: str, name: str) -> tuple[str, str] | None:
    """Return the usual loss of a result and a target: Python, and words for it."""
    if not isinstance(target, torch.Tensor):
        return None
    if target.is_floating_point():
        if target.shape == prediction.shape:
            how = "mean square error to the targets of the data"
            return f"torch.nn.functional.mse_loss({call}, {name})", how
        return None
    last = prediction.ndim > 2 and prediction.shape[:-1] == target.shape  # noqa: PLR2004
    moved = ".movedim(-1, 1)" if last else ""
    how = "cross entropy with the labels of the data"
    return f"torch.nn.functional.cross_entropy({call}{moved}, {name})", how


def prediction_in(output: Any) -> tuple[str, torch.Tensor]:
    """Return how the result that a loss is about is reached in an output, and the result."""
    if isinstance(output, torch.Tensor):
        return "", output
    if isinstance(output, Mapping):
        keys = [key for key in (*PREDICTION_KEYS, *output) if isinstance(output.get(key), torch.Tensor)]
        return f"[{keys[0]!r}]", output[keys[0]]
    for key in PREDICTION_KEYS:
        if isinstance(getattr(output, key, None), torch.Tensor):
            return f".{key}", getattr(output, key)
    if isinstance(output, (tuple, list)):
        for at, value in enumerate(output):
            found = next(tensors(value), None)
            if found is not None and found.is_floating_point():
                inner, prediction = prediction_in(value)
                return f"[{at}]{inner}", prediction
    found = next(t for t in tensors(output) if t.is_floating_point())
    return "", found


def number_of_classes(prediction: torch.Tensor, shapes: Shapes, kind: str) -> int | None:
    """Return how many classes a result tells apart, None for one that is a number or a picture."""
    said = {value for key, value in shapes.said if CLASSES.search(key) and "action" not in key}
    if prediction.ndim < 2:  # noqa: PLR2004
        return None
    for size in (prediction.shape[1], prediction.shape[-1]):
        if size > 1 and (size in said or (prediction.ndim == 2 and _CLASSIFIES.search(kind))):  # noqa: PLR2004
            return int(size)
    vocabularies = set(shapes.vocabularies)
    of_words = prediction.ndim == 3 and prediction.shape[-1] in vocabularies  # noqa: PLR2004
    return int(prediction.shape[-1]) if of_words else None


def places(prediction: torch.Tensor, number: int) -> list[int]:
    """Return the sizes of a result without its samples and its classes."""
    inner = list(prediction.shape[1:])
    inner.pop(0 if prediction.shape[1] == number else -1)
    return [int(size) for size in inner]
