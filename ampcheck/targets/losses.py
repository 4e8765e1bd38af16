"""Losses for targets that do not write one out: the model's own, a criterion's, or a stand-in."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ampcheck.errors import TargetError
from ampcheck.targets.nested import tensors
from ampcheck.targets.scope import parameters_of

LABEL_KEYS = ("labels", "label", "targets", "target", "y")
PREDICTION_KEYS = ("logits", "out", "output", "prediction", "last_hidden_state")


def positional(call: Callable[..., Any]) -> tuple[int, float]:
    """Return how few and how many positional arguments a callable takes."""
    parameters = parameters_of(call)
    if parameters is None:
        return 1, 1
    kinds = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    return sum(p.default is p.empty for p in kinds), float("inf") if variadic else len(kinds)


def call_model(model: Any, batch: Any) -> Any:
    """Call a model as its signature asks: a mapping by name, a tuple by position, else as one argument."""
    if isinstance(batch, Mapping):
        named = _accepted(model, batch)
        # A forward(self, x) that looks up x["image"] by itself knows none of the names.
        return model(**named) if named or not batch else model(batch)
    if isinstance(batch, tuple):
        return model(*batch[: arguments_taken(model, len(batch))])
    return model(batch)


def arguments_taken(model: Any, given: int) -> int:
    """Return how many of the items of a tuple go into the model; the rest is for the loss."""
    fewest, most = positional(getattr(model, "forward", model))
    return given if most == float("inf") or fewest >= given else max(fewest, 1)


def own_loss(output: Any) -> torch.Tensor | None:
    """Return the loss a model has computed itself, None if its output holds none."""
    if isinstance(output, Mapping):
        named = output.get("loss")
        scalars = [v for v in output.values() if _is_loss(v)]
        if named is None and scalars and len(scalars) == len(output):
            return torch.stack([s.float() for s in scalars]).sum()  # detectors return one loss per task
    else:
        named = getattr(output, "loss", None)
    if isinstance(named, torch.Tensor) and named.is_floating_point():
        return named.mean()
    candidates = output if isinstance(output, tuple) else (output,)
    return next((value for value in candidates if _is_loss(value)), None)


def stand_in(output: Any) -> torch.Tensor:
    """Return a loss that reaches every floating-point output: the sum of their mean squares."""
    inexact = [t for t in tensors(output) if t.numel() and (t.is_floating_point() or t.is_complex())]
    if not inexact:
        raise TargetError(
            f"expected a floating-point tensor among the model's outputs, got {type(output).__name__}; "
            "write a function loss(model, batch)"
        )
    learned = [t for t in inexact if t.requires_grad] or inexact
    return torch.stack([t.abs().float().square().mean() for t in learned]).sum()


def prediction(output: Any) -> torch.Tensor:
    """Return the tensor of an output that a criterion is meant for."""
    if isinstance(output, torch.Tensor):
        return output
    for key in PREDICTION_KEYS:
        value = output.get(key) if isinstance(output, Mapping) else getattr(output, key, None)
        if isinstance(value, torch.Tensor):
            return value
    found = next(tensors(output), None)
    if found is None:
        raise TargetError(f"expected a tensor from the model for the criterion, got {type(output).__name__}")
    return found


def loss_of_model(model: Any, batch: Any) -> torch.Tensor:
    """Return the loss that the model itself computes for a batch."""
    loss = own_loss(call_model(model, batch))
    if loss is None:
        raise TargetError("the model computed a loss when it was loaded, and computes none now")
    return loss


def stand_in_of_model(model: Any, batch: Any) -> torch.Tensor:
    """Return the stand-in loss of the model's outputs for a batch."""
    return stand_in(call_model(model, batch))


@dataclasses.dataclass(frozen=True, slots=True)
class CriterionLoss:
    """A loss of a criterion on (input, target) batches: all items but the last go into the model."""

    criterion: Callable[[Any, Any], torch.Tensor]

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        """Return criterion(model(input), target)."""
        inputs, target = split_target(batch)
        return self.criterion(prediction(call_model(model, inputs)), target)


def split_target(batch: Any) -> tuple[Any, Any]:
    """Return what goes into the model and the target of a batch, by position or by name."""
    if isinstance(batch, list | tuple) and len(batch) > 1:
        inputs = tuple(batch[:-1])
        return (inputs[0] if len(inputs) == 1 else inputs), batch[-1]
    if isinstance(batch, Mapping):
        for key in LABEL_KEYS:
            if key in batch:
                return {k: v for k, v in batch.items() if k != key}, batch[key]
    raise TargetError(
        f"expected an (input, target) batch for the criterion, got {type(batch).__name__}",
        hint="def loss(model, batch):\n    return criterion(model(batch), ...)",
    )


def _accepted(model: Any, batch: Mapping[Any, Any]) -> dict[str, Any]:
    """Leave out what the model has no parameter for, as training loops over dictionaries do."""
    parameters = parameters_of(getattr(model, "forward", model))
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(batch)
    return {key: value for key, value in batch.items() if key in parameters}


def _is_loss(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0 and value.is_floating_point()
