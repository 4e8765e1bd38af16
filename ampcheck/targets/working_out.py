"""What a file does not say of the model in it, worked out: which class, how it is built, a batch and a loss."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ampcheck.errors import TargetError
from ampcheck.targets.alone import parts_of
from ampcheck.targets.constructing import Construction, constructions
from ampcheck.targets.draft import Draft, NotFound, draft
from ampcheck.targets.inputs import settings
from ampcheck.targets.reading import read_source
from ampcheck.targets.scope import Scope
from ampcheck.targets.seeding import seeded
from ampcheck.targets.userfile import explained, shown
from ampcheck.values.wording import short_count

#: Ways of building a class that are tried, and data sets of a file.
MOST_WAYS, MOST_SETS = 6, 4


@dataclass(frozen=True, slots=True)
class Built:
    """A model, and the Python that built it."""

    model: Any  #: an `nn.Module`, or a callable that stands before one
    how: Construction

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what has to be said of how it was built."""
        if self.how.text.endswith("()") or "(" not in self.how.text:
            return ()
        origin = f", as in {self.how.origin}" if self.how.origin else ", with arguments that were worked out"
        return (f"the model is {self.how.text}{origin}",)


class UnbuiltError(TargetError):
    """A class of the user's that could not be built."""

    def __init__(self, kind: type[nn.Module], why: str, where: str) -> None:
        """Keep the class; the message says why, and how to go on."""
        message = f"{kind.__name__} needs arguments that could not be worked out{why}; write how it is built"
        super().__init__(message, where=where, hint=f"ampcheck init {where}:{kind.__name__}")
        self.kind = kind


def own_classes(scope: Scope) -> dict[str, type[nn.Module]]:
    """Return the modules that a file itself defines, without losses where it has others."""
    name = scope.user.module.__name__
    found = {
        key: value
        for key, value in scope.names.items()
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == name
    }
    rest = {key: value for key, value in found.items() if not key.endswith(("Loss", "Criterion"))}
    return rest or found


def whole_models(scope: Scope) -> dict[str, type[nn.Module]]:
    """Return the classes of a file that are no part of another, and that run."""
    classes = own_classes(scope)
    source = read_source(scope.user.file)
    if source is None or len(classes) <= 1:
        return classes
    parts = {part for name in classes for part in parts_of(name, source, set(classes))}
    rest = {name: kind for name, kind in classes.items() if name not in parts and _runs(kind)}
    return rest or classes


def _runs(kind: type[nn.Module]) -> bool:
    if kind.forward is nn.Module.forward:
        return hasattr(kind, "training_step")
    code = getattr(kind.forward, "__code__", None)
    return code is None or "NotImplementedError" not in code.co_names


def built(name: str, kind: type[nn.Module], scope: Scope) -> Built:
    """Build a class of the user's, filling in what its constructor needs."""
    source = read_source(scope.user.file)
    error: Exception | None = None
    names = dict(scope.names)
    ways = (
        constructions(name, kind, source, names) if source is not None else iter([Construction(f"{name}()")])
    )
    for _, how in zip(range(MOST_WAYS), ways, strict=False):
        try:
            with seeded(0):
                model = _evaluated(how.text, names)
        except Exception as raised:  # noqa: BLE001  # it was a guess
            error = raised
            continue
        if isinstance(model, nn.Module):
            return Built(model, how)
    why = f": {explained(error)}" if error is not None else ""
    raise UnbuiltError(kind, why, scope.where) from error


def _evaluated(text: str, names: Mapping[str, Any]) -> Any:
    return eval(text, dict(names))  # noqa: S307  # the user's own names, in calls that were read from their files


def trainable(found: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """Return those of several models that have parameters; all of them where none is known to."""
    rest = {name: value for name, value in found.items() if _parameters(name, value, scope) != 0}
    return rest or dict(found)


def which(found: Mapping[str, Any], scope: Scope) -> TargetError:
    """Return the error that asks which of several models is meant, with the size of each."""
    sized = [f"{name}{_size(name, value, scope)}" for name, value in found.items()]
    return TargetError(
        f"{len(found)} models found: {', '.join(sized)}; say which",
        where=scope.where,
        hint="\n".join(f"ampcheck {scope.where}:{name}" for name in list(found)[:6]),
    )


def _size(name: str, value: Any, scope: Scope) -> str:
    number = _parameters(name, value, scope)
    return "" if number is None else f" ({short_count(number)} parameters)"


def _parameters(name: str, value: Any, scope: Scope) -> int | None:
    """Return how many parameters a model has; None where nobody knows how to build it."""
    try:
        model = value if isinstance(value, nn.Module) else built(name, value, scope).model
    except TargetError:
        return None
    return sum(p.numel() for p in model.parameters())


def worked_out(scope: Scope, made: Built) -> Draft:
    """Return a batch and a loss for a model of the file."""
    try:
        return drafted(scope, made)
    except NotFound as error:
        raise TargetError(
            f"{error}; write one",
            where=scope.where,
            hint=f"ampcheck init {scope.where}:{type(made.model).__name__}",
        ) from error


def drafted(scope: Scope, made: Built) -> Draft:
    """Return a batch and a loss that were tried on a model of the file; raises `NotFound`."""
    text = made.how.text
    given = settings(type(made.model), text, lambda part: _evaluated(part, scope.names))
    return draft(made.model, Draft(text, made.how.origin), given, _data_sets(scope))


def _data_sets(scope: Scope) -> Iterator[tuple[str, Any]]:
    """Yield the data sets that a file defines, built, with the Python that builds each."""
    source = read_source(scope.user.file)
    own = scope.user.module.__name__
    kinds = [
        (name, value)
        for name, value in scope.names.items()
        if isinstance(value, type) and issubclass(value, torch.utils.data.Dataset) and value.__module__ == own
    ]
    for name, kind in kinds[:MOST_SETS] if source is not None else []:
        for _, how in zip(range(2), constructions(name, kind, source, dict(scope.names)), strict=False):  # type: ignore[arg-type]
            try:
                with seeded(0):
                    data = _evaluated(how.text, scope.names)
            except Exception:  # noqa: BLE001, S112  # files that are not there, and the like
                continue
            yield how.text, data


def names_for(made: Draft, scope: Scope) -> dict[str, Any]:
    """Return model, batch and loss of a draft, as names beside those of the file."""
    names = {**scope.names, "torch": torch}
    exec(compile(made.source(), f"<worked out for {shown(scope.user.file)}>", "exec"), names)  # noqa: S102
    return {key: names[key] for key in ("model", "batch", "loss")}
