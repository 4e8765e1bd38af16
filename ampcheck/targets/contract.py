"""The file contract: what a user's module calls `model`, `batch`, `loss`, and other names for them."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ampcheck.errors import TargetError
from ampcheck.targets.batches import find_batches, find_validation
from ampcheck.targets.lossfinder import find_loss
from ampcheck.targets.modelfinder import build_model
from ampcheck.targets.scope import BATCH_NAMES, CRITERION_NAMES, MODEL_NAMES, OTHER_NAMES, Scope
from ampcheck.targets.spec import Options, Spec, Target, close
from ampcheck.targets.userfile import import_dotted, import_file, user_code
from ampcheck.targets.weights import place


def from_user(spec: Spec, options: Options) -> Target:
    """Return the target that a user's file or module describes."""
    user = import_file(Path(spec.source)) if spec.kind == "file" else import_dotted(spec.source)
    scope = Scope(vars(user.module), user)
    with user.imports, user_code(user.file):
        picked, scope = _pick(spec.name, scope) if spec.name else (None, scope)
        model = place(build_model(scope, picked), options)
        batches, notes = find_batches(scope, model, options)
        loss = find_loss(scope, model, batches[0], options.device)
        optimizer = _optimizer(scope)
        validation = find_validation(scope, options)
    if options.small:
        notes += ("--small has no effect on a model of your own",)
    return Target(
        name=spec.text,
        model=model,
        batches=batches,
        loss=loss.function,
        optimizer=optimizer,
        after_step=_function(scope, "after_step"),
        metric=_function(scope, "metric"),
        validation=validation,
        stand_in_loss=loss.stand_in,
        notes=notes + loss.notes,
        file=user.file,
        imports=user.imports,
    )


def _pick(dotted: str, scope: Scope) -> tuple[Any, Scope]:
    """Return the value of a dotted name, as a model or as a scope of its own."""
    value: Any = scope.user.module
    for name in dotted.split("."):
        if not hasattr(value, name):
            known = [
                key for key, item in vars(value).items() if not key.startswith("_") and _can_be_target(item)
            ]
            raise TargetError(f"no {name!r} in it{close(name, known) or _listed(known)}", where=scope.where)
        value = getattr(value, name)
    if not _can_be_target(value):
        raise TargetError(
            f"expected {dotted} to be a model, a function making one, or an object with model and batch, "
            f"got {type(value).__name__}",
            where=scope.where,
        )
    if _is_factory(value):
        made = scope.call(value)
        return (None, scope.within(_entries(made))) if _is_namespace(made) else (made, scope)
    if isinstance(value, type) and not issubclass(value, torch.nn.Module):
        value = scope.call(value)
    return (None, scope.within(_entries(value))) if _is_namespace(value) else (value, scope)


def _is_factory(value: Any) -> bool:
    return callable(value) and hasattr(value, "__code__")


def _is_namespace(value: Any) -> bool:
    if isinstance(value, torch.nn.Module | torch.Tensor) or callable(value):
        return False
    return "model" in value if isinstance(value, Mapping) else hasattr(value, "model")


def _can_be_target(value: Any) -> bool:
    return callable(value) or _is_namespace(value)


def _entries(namespace: Any) -> dict[str, Any]:
    if isinstance(namespace, Mapping):
        return {str(key): item for key, item in namespace.items()}
    known = (*MODEL_NAMES, *BATCH_NAMES, *CRITERION_NAMES, *OTHER_NAMES)
    return {name: getattr(namespace, name) for name in known if hasattr(namespace, name)}


def _listed(names: list[str]) -> str:
    return f"; it has {', '.join(names[:6])}" if names else ""


def _optimizer(scope: Scope) -> Any:
    value = scope.names.get("optimizer")
    if isinstance(value, torch.optim.Optimizer):
        return lambda _model: value
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer):
        made_from: Any = value  # each optimizer has defaults of its own for the rest
        return lambda model: made_from(model.parameters())
    return _function(scope, "optimizer")


def _function(scope: Scope, name: str) -> Any:
    value = scope.names.get(name)
    if value is None or isinstance(value, ModuleType):
        return None
    if not callable(value):
        raise TargetError(
            f"expected {name} to be a function {name}(model), got {type(value).__name__}", where=scope.where
        )
    return value
