"""Finding the user's model and building it."""

import inspect
from typing import Any

import torch
from torch import nn

from ampcheck.errors import TargetError
from ampcheck.targets.scope import BATCH_NAMES, CRITERION_NAMES, MODEL_NAMES, OTHER_NAMES, Scope, binds

FIRST_LAYER_EXAMPLES = "torch.randn(8, 3, 64, 64)"
SPATIAL = 64
SEQUENCE = 16


def build_model(scope: Scope, picked: Any = None) -> Any:
    """Return the model: the picked value, the one under a known name, or the only one there is."""
    value = picked if picked is not None else _find(scope)
    if isinstance(value, nn.Module) or _is_proxy(value):
        return value
    if not callable(value):
        raise TargetError(
            f"expected model to be an nn.Module or a function making one, got {type(value).__name__}",
            where=scope.where,
        )
    made = scope.call(value)
    if isinstance(made, nn.Module) or _is_proxy(made):
        return made
    name = getattr(value, "__name__", "the model function")
    raise TargetError(
        f"expected {name}() to return an nn.Module, got {type(made).__name__}", where=scope.where
    )


def example_input(model: Any) -> str:
    """Return Python for an input that the first layer of a model would take."""
    layers = model.modules() if isinstance(model, nn.Module) else ()
    for layer in layers:
        if isinstance(layer, nn.Embedding):
            return f"torch.randint(0, {layer.num_embeddings}, (8, {SEQUENCE}))"
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            sizes = [8, layer.in_channels, *[SPATIAL] * len(layer.kernel_size)]
            return f"torch.randn({', '.join(map(str, sizes))})"
        if isinstance(layer, nn.Linear):
            return f"torch.randn(8, {layer.in_features})"
        if isinstance(layer, nn.RNNBase):
            return f"torch.randn(8, {SEQUENCE}, {layer.input_size})"
    return FIRST_LAYER_EXAMPLES


def vocabulary(model: Any) -> int | None:
    """Return how many indices the model's first layer takes, None if that is not an embedding."""
    layers = model.modules() if isinstance(model, nn.Module) else ()
    kinds = (nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.RNNBase)
    first = next((layer for layer in layers if isinstance(layer, kinds)), None)
    return first.num_embeddings if isinstance(first, nn.Embedding) else None


def _find(scope: Scope) -> Any:
    named = scope.first(MODEL_NAMES)
    if named:
        return named[1]
    found = candidates(scope)
    if len({id(value) for value in found.values()}) == 1:
        return next(iter(found.values()))
    if found:
        raise TargetError(
            f"expected one model, found {len(found)}: {', '.join(found)}; say which",
            where=scope.where,
            hint="\n".join(f"ampcheck {scope.where}:{name}" for name in list(found)[:3]),
        )
    if factories := _own_functions(scope):
        listed = "\n".join(f"ampcheck {scope.where}:{name}" for name in factories[:3])
        raise TargetError(
            "no model found; define model, or name the function that makes one",
            where=scope.where,
            hint=listed,
        )
    classes = _own_classes(scope)
    name = next(iter(classes), "Net")
    needs = f" ({name} needs arguments)" if classes else ""
    raise TargetError(
        f"no model found; define model{needs}",
        where=scope.where,
        hint=f"def model():\n    return {name}({'...' if classes else ''})",
    )


def _own_functions(scope: Scope) -> list[str]:
    """Return the names of the file's own functions without arguments, but for those of the contract."""
    own = vars(scope.user.module).get("__name__")
    contract = (*BATCH_NAMES, *CRITERION_NAMES, *OTHER_NAMES, "main")
    functions = {k: v for k, v in scope.names.items() if inspect.isfunction(v) and v.__module__ == own}
    return [
        name for name, made in functions.items() if name not in contract and name[0] != "_" and binds(made)
    ]


def candidates(scope: Scope) -> dict[str, Any]:
    """Return by name the modules that a file has made, or else those of its classes that build without arguments."""
    losses = nn.modules.loss._Loss  # noqa: SLF001
    made = {k: v for k, v in scope.names.items() if isinstance(v, nn.Module) and not isinstance(v, losses)}
    return made or {k: v for k, v in _own_classes(scope).items() if binds(v)}


def _own_classes(scope: Scope) -> dict[str, Any]:
    return {k: v for k, v in scope.names.items() if _is_own_class(v, scope)}


def _is_own_class(value: Any, scope: Scope) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, nn.Module)
        and value.__module__ == scope.user.module.__name__
    )


def _is_proxy(value: Any) -> bool:
    """Say whether a callable object stands before a model: it has its parameters, or holds one."""
    if not callable(value) or isinstance(value, type) or hasattr(value, "__code__"):
        return False
    held = getattr(value, "__dict__", {})
    return callable(getattr(value, "parameters", None)) or any(
        isinstance(item, torch.nn.Module) for item in held.values()
    )
