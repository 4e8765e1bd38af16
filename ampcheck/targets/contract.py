"""The file contract: what a user's module calls `model`, `batch`, `loss`, and other names for them."""

import copy
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ampcheck.errors import TargetError
from ampcheck.targets.batches import find_batches, find_extra
from ampcheck.targets.captured import replayed
from ampcheck.targets.draft import Draft
from ampcheck.targets.lossfinder import MODEL_PARAMETERS, Loss, find_loss, probe
from ampcheck.targets.modelfinder import build_model
from ampcheck.targets.scope import (
    BATCH_NAMES,
    CRITERION_NAMES,
    MODEL_NAMES,
    OTHER_NAMES,
    PREDICT_NAMES,
    Scope,
    parameters_of,
)
from ampcheck.targets.spec import Options, Spec, Target, close, no_loss
from ampcheck.targets.userfile import import_dotted, import_file, user_code
from ampcheck.targets.weights import place
from ampcheck.targets.working_out import Built, names_for, worked_out


def from_user(spec: Spec, options: Options) -> Target:
    """Return the target that a user's file or module describes."""
    user = import_file(Path(spec.source)) if spec.kind == "file" else import_dotted(spec.source)
    scope = Scope(vars(user.module), user)
    with user.imports, user_code(user.file):
        picked, scope = _pick(spec.name, scope) if spec.name else (None, scope)
        made = build_model(scope, picked, spec.name)
        if options.captured is not None:
            return replace(replayed(made.model, options, spec.text), file=user.file, imports=user.imports)
        drafted, scope = _worked_out(scope, made, options)
        model = place(made.model, options)
        batches, notes = find_batches(scope, model, options)
        predict = _predict(scope)
        loss = _loss(scope, model, batches[0], options, predict)
        optimizer = _optimizer(scope)
        validation = find_extra(scope, "validation", options)
        warmup = find_extra(scope, "warmup", options)
    stand_in = loss.stand_in or (drafted is not None and not drafted.own_loss)
    notes = (*made.notes, *([user.note] if user.note else []), *notes, *_said(drafted, scope, made))
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
        predict=predict,
        infers=loss.function is no_loss or (stand_in and getattr(model, "training", True) is False),
        steps=_steps(scope),
        scaled=_scaled(scope),
        validation=validation,
        warmup=warmup,
        stand_in_loss=stand_in,
        notes=notes + loss.notes,
        file=user.file,
        imports=user.imports,
    )


def _worked_out(scope: Scope, made: Built, options: Options) -> tuple[Draft | None, Scope]:
    """Return a batch and a loss for a model whose file has none, and the scope that holds them."""
    if scope.first(BATCH_NAMES) is not None or options.input_shape is not None:
        return None, scope
    if not isinstance(made.model, torch.nn.Module):
        return None, scope
    drafted = worked_out(scope, made)
    names = names_for(drafted, scope)
    if scope.first(PREDICT_NAMES) is not None:
        return None, scope.within({**scope.names, "batch": names["batch"]})
    if scope.first(("loss", *CRITERION_NAMES)) is None:
        return drafted, scope.within({**scope.names, "batch": names["batch"], "loss": names["loss"]})
    batch = names["batch"]()
    for value in (batch, batch[0]) if isinstance(batch, tuple) else (batch,):
        with_batch = scope.within({**scope.names, "batch": value})
        try:
            probe(made.model, value, find_loss(with_batch, made.model, value, "cpu").function)
        except Exception:  # noqa: BLE001, S112  # their loss takes a batch apart in its own way
            continue
        return None, with_batch
    command = f"ampcheck init {scope.where}:{type(made.model).__name__}"
    raise TargetError("no batch found that the loss takes; write one", where=scope.where, hint=command)


def _said(drafted: Draft | None, scope: Scope, made: Built) -> tuple[str, ...]:
    if drafted is None:
        return ()
    command = f"ampcheck init {scope.where}:{type(made.model).__name__}"
    return (f"batch and loss were worked out, the loss is {drafted.shown}: to write your own, {command}",)


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
    if callable(value) and hasattr(value, "__code__"):
        made = scope.call(value)
        return (None, scope.within(_entries(made))) if _is_namespace(made) else (made, scope)
    if isinstance(value, type) and not issubclass(value, torch.nn.Module):
        value = scope.call(value)
    return (None, scope.within(_entries(value))) if _is_namespace(value) else (value, scope)


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
        return _restarted(value)
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer):
        made_from: Any = value  # each optimizer has defaults of its own for the rest
        return lambda model: made_from(model.parameters())
    return _function(scope, "optimizer")


def _restarted(optimizer: torch.optim.Optimizer) -> Any:
    """Return what gives the file's own optimizer as it was when the file was run.

    Several trainings are compared: none may begin with the moments that another one has left.
    """
    kept = _contents(optimizer.param_groups, optimizer.state)

    def begun(_model: Any) -> torch.optim.Optimizer:
        groups, optimizer.state = _contents(*kept)
        for group, as_made in zip(optimizer.param_groups, groups, strict=True):
            group.update(as_made)
        return optimizer

    return begun


def _contents(groups: list[Any], state: Mapping[Any, Any]) -> tuple[list[Any], Any]:
    """Return copies of an optimizer's groups and moments; the parameters in them are no copies."""
    options = [{**copy.deepcopy({**group, "params": ()}), "params": [*group["params"]]} for group in groups]
    return options, defaultdict(dict, {one: copy.deepcopy(held) for one, held in state.items()})


def _steps(scope: Scope) -> int:
    """Return how many steps the file says its training takes, 0 where it does not say."""
    value = scope.names.get("STEPS", scope.names.get("steps"))
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _scaled(scope: Scope) -> bool:
    """Tell whether the file trains with a gradient scaler."""
    value = scope.names.get("SCALER", scope.names.get("scaler"))
    return value is True or isinstance(value, torch.amp.GradScaler)


def _predict(scope: Scope) -> Any:
    """Return the user's function of (model, batch) that uses the model, None where there is none."""
    named = scope.first(PREDICT_NAMES)
    function = named[1] if named is not None else None
    first, *others = parameters_of(function) or [""]
    # random.sample and the like are other people's functions: the user's own takes the model first.
    return function if first in MODEL_PARAMETERS and len(others) == 1 else None


def _loss(scope: Scope, model: Any, batch: Any, options: Options, predict: Any) -> Loss:
    """Return the loss; none is looked for where only forwards are wanted."""
    asked = "loss" in scope.names or scope.first(CRITERION_NAMES) is not None
    if options.infer or (predict is not None and not asked):
        return Loss(no_loss)
    return find_loss(scope, model, batch, options.device)


def _function(scope: Scope, name: str) -> Any:
    value = scope.names.get(name)
    if value is None or isinstance(value, ModuleType):
        return None
    if not callable(value):
        words = f"expected {name} to be a function {name}(model), got {type(value).__name__}"
        raise TargetError(words, where=scope.where)
    return value
