"""Finding the user's model and building it."""

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ampcheck.errors import TargetError
from ampcheck.targets.constructing import Construction
from ampcheck.targets.scope import BATCH_NAMES, CRITERION_NAMES, MODEL_NAMES, OTHER_NAMES, Scope, binds
from ampcheck.targets.working_out import Built, built, own_classes, trainable, which, whole_models

FIRST_LAYER_EXAMPLES = "torch.randn(8, 3, 64, 64)"
SPATIAL = 64
SEQUENCE = 16


def build_model(scope: Scope, picked: Any = None, name: str = "") -> Built:
    """Return the model: the picked value, the one under a known name, or the only one there is."""
    if picked is None:
        name, value = _find(scope)
    else:
        name, value = name.rpartition(".")[2] or "model", picked
    if isinstance(value, nn.Module) or _is_proxy(value):
        return Built(value, Construction(name))
    if isinstance(value, type) and issubclass(value, nn.Module):
        return built(value.__name__, value, replace(scope, names={value.__name__: value, **scope.names}))
    if not callable(value):
        raise TargetError(
            f"expected model to be an nn.Module or a function making one, got {type(value).__name__}",
            where=scope.where,
        )
    made = scope.call(value)
    if isinstance(made, nn.Module) or _is_proxy(made):
        return Built(made, Construction(f"{name}()"))
    called = getattr(value, "__name__", "the model function")
    raise TargetError(
        f"expected {called}() to return an nn.Module, got {type(made).__name__}", where=scope.where
    )


def example_input(model: Any) -> str:
    """Return Python for an input that the first layer of a model would take."""
    layer = _first_layer(model)
    if isinstance(layer, nn.Embedding):
        return f"torch.randint(0, {layer.num_embeddings}, (8, {SEQUENCE}))"
    if isinstance(layer, nn.Linear):
        return f"torch.randn(8, {layer.in_features})"
    if isinstance(layer, nn.RNNBase):
        return f"torch.randn(8, {SEQUENCE}, {layer.input_size})"
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        sizes = [8, layer.in_channels, *[SPATIAL] * len(layer.kernel_size)]
        return f"torch.randn({', '.join(map(str, sizes))})"
    return FIRST_LAYER_EXAMPLES


def vocabulary(model: Any) -> int | None:
    """Return how many indices the model's first layer takes, None if that is not an embedding."""
    first = _first_layer(model)
    return first.num_embeddings if isinstance(first, nn.Embedding) else None


def _first_layer(model: Any) -> nn.Module | None:
    layers = model.modules() if isinstance(model, nn.Module) else ()
    kinds = (nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.RNNBase)
    return next((layer for layer in layers if isinstance(layer, kinds)), None)


def _find(scope: Scope) -> tuple[str, Any]:
    """Return the name of the model and what stands under it; where there are several, ask."""
    named = scope.first(MODEL_NAMES)
    found = _made(scope) or whole_models(scope)
    if named and not (found and _needs_arguments(named[1])):
        return named
    if len({id(value) for value in found.values()}) == 1:
        return next(iter(found.items()))
    found = trainable(found, scope)  # a matcher or an augmentation is no model to be audited
    if len(found) == 1:
        return next(iter(found.items()))
    if found:
        raise which(found, scope)
    if factories := _own_functions(scope):
        listed = "\n".join(f"ampcheck {scope.where}:{name}" for name in factories[:3])
        words = "no model found; define model, or name the function that makes one"
        raise TargetError(words, where=scope.where, hint=listed)
    raise TargetError(
        "no model found; define model", where=scope.where, hint="def model():\n    return Net()"
    )


def _needs_arguments(value: Any) -> bool:
    """Tell whether a function or class of the user's cannot be called as it is."""
    return (inspect.isfunction(value) or isinstance(value, type)) and not binds(value)


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
    return _made(scope) or {k: v for k, v in own_classes(scope).items() if binds(v)}


def _made(scope: Scope) -> dict[str, Any]:
    losses = nn.modules.loss._Loss  # noqa: SLF001
    return {k: v for k, v in scope.names.items() if isinstance(v, nn.Module) and not isinstance(v, losses)}


def _is_proxy(value: Any) -> bool:
    """Say whether a callable object stands before a model: it has its parameters, or holds one."""
    if not callable(value) or isinstance(value, type) or hasattr(value, "__code__"):
        return False
    held = getattr(value, "__dict__", {})
    return callable(getattr(value, "parameters", None)) or any(
        isinstance(item, torch.nn.Module) for item in held.values()
    )
