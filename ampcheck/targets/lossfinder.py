"""Finding the user's loss, or standing one in."""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ampcheck.errors import TargetError
from ampcheck.targets.losses import (
    CriterionLoss,
    arguments_taken,
    call_model,
    loss_of_model,
    own_loss,
    positional,
    split_target,
    stand_in,
    stand_in_of_model,
)
from ampcheck.targets.scope import CRITERION_NAMES, Scope, definition, parameters_of
from ampcheck.targets.seeding import seeded

MODEL_PARAMETERS = ("model", "m", "net", "module", "network")
OUTPUT_PARAMETERS = (
    "input", "inputs", "output", "outputs", "pred", "preds", "prediction", "predictions", "logits", "y_hat",
    "y_pred",
)  # fmt: skip
HINT = (
    "def loss(model, batch):\n    inputs, target = batch\n"
    "    return torch.nn.functional.cross_entropy(model(inputs), target)"
)
STAND_IN_NOTE = (
    "no loss was given: the mean square of the outputs stands in, "
    "so gradient magnitudes are not those of your training"
)


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of (model, batch), and whether it was invented here."""

    function: Callable[[Any, Any], torch.Tensor]
    stand_in: bool = False
    notes: tuple[str, ...] = ()


def find_loss(scope: Scope, model: Any, batch: Any, device: str) -> Loss:
    """Return the user's loss, their criterion on (input, target), the model's own loss, or a stand-in."""
    value = scope.names.get("loss")
    named = ("loss", value) if value is not None else scope.first(CRITERION_NAMES)
    if named is None:
        return model_or_stand_in(model, batch)
    loss = _written(scope, *named, device)
    if isinstance(loss, CriterionLoss):
        split_target(batch)  # says now that there is no target in the batch, not in the middle of an audit
    return Loss(loss)


def model_or_stand_in(model: Any, batch: Any) -> Loss:
    """Run the model once, aside, to see whether it computes a loss; stand one in if not."""
    output = probe(model, batch)
    notes: tuple[str, ...] = ()
    if isinstance(batch, tuple) and (taken := arguments_taken(model, len(batch))) < len(batch):
        notes = (f"of the {len(batch)} items of a batch, the first {taken} go into the model",)
    if own_loss(output) is not None:
        return Loss(loss_of_model, notes=(*notes, "the loss is the one that the model computes itself"))
    stand_in(output)  # says now, not in the middle of an audit, that there is nothing to differentiate
    return Loss(stand_in_of_model, stand_in=True, notes=(*notes, STAND_IN_NOTE))


def probe(model: Any, batch: Any, run: Callable[[Any, Any], Any] = call_model) -> Any:
    """Return the outputs for a batch, without gradients and without moving the model or any random state."""
    try:
        subject = copy.deepcopy(model)
    except Exception:  # noqa: BLE001
        # Not every model can be copied; its buffers can, below.
        subject = model
    buffers = [(b, b.clone()) for b in subject.buffers()] if isinstance(subject, nn.Module) else []
    try:
        with torch.no_grad(), seeded(0):
            return run(subject, batch)
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _written(scope: Scope, name: str, value: Any, device: str) -> Callable[[Any, Any], torch.Tensor]:
    """Return what the user wrote as a function of (model, batch)."""
    if isinstance(value, type) and issubclass(value, nn.Module):
        value = scope.call(value)
    if not callable(value) or isinstance(value, torch.Tensor):
        raise TargetError(
            f"expected {name} to be a function of (model, batch), got {type(value).__name__}",
            where=scope.where,
            hint=HINT,
        )
    function = value.forward if isinstance(value, nn.Module) else value
    fewest, most = positional(function)
    if not fewest <= len(("model", "batch")) <= most:
        raise TargetError(
            f"expected {name} to take (model, batch), it takes {_signature(function)}",
            where=definition(function) or scope.where,
            hint=HINT,
        )
    if not _is_criterion(name, value, function):
        return value  # type: ignore[no-any-return]
    return CriterionLoss(value.to(device) if isinstance(value, nn.Module) else value)


def _is_criterion(name: str, value: Any, function: Callable[..., Any]) -> bool:
    first = next(iter(parameters_of(function) or ()), "")
    if first in MODEL_PARAMETERS:
        return False
    return name in CRITERION_NAMES or isinstance(value, nn.Module) or first in OUTPUT_PARAMETERS


def _signature(function: Callable[..., Any]) -> str:
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError):
        return "something else"
