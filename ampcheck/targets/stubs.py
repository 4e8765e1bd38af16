"""The file that `ampcheck init` writes: model, batch and loss for a file that has none."""

import ast
import builtins
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ampcheck.errors import TargetError
from ampcheck.targets.constructing import Construction, required
from ampcheck.targets.draft import Draft, NotFound
from ampcheck.targets.inputs import asked
from ampcheck.targets.modelfinder import build_model
from ampcheck.targets.reading import read
from ampcheck.targets.scope import Scope
from ampcheck.targets.spec import Spec
from ampcheck.targets.userfile import import_file, package_of, shown, user_code
from ampcheck.targets.working_out import Built, UnbuiltError, drafted

_HEAD = '''"""What ampcheck audits in {file}, written by `ampcheck init`: change what is not as in your training."""

import torch

'''


@dataclass(frozen=True, slots=True)
class Stubs:
    """A file to be written."""

    path: Path
    text: str
    shown: str  #: what is in it, in a few words


def stubs(spec: Spec) -> Stubs:
    """Return the file for a model; what could not be worked out is a line that says so."""
    file = Path(spec.source)
    if read(file).trains_on_import:
        raise TargetError(
            "the file trains when it is imported, so no other file can import its model; audit the file itself",
            where=shown(file),
            hint=f"ampcheck {shown(file)}",
        )
    user = import_file(file)
    scope = Scope(vars(user.module), user)
    with user.imports, user_code(file):
        try:
            made = _model(scope, spec.name)
            found, missing = drafted(scope, made), ""
        except NotFound as error:
            found, missing = _to_fill_in(made), str(error)
        except UnbuiltError as error:
            made, missing = _unbuilt(error.kind), "write its arguments, a batch and a loss in it"
            found = _to_fill_in(made)
    body = found.source()
    kind = type(made.model).__name__
    return Stubs(
        Path(shown(file.with_name(f"{file.stem}_audit.py"))),
        _HEAD.format(file=file.name) + _imports(file, body, scope) + body,
        f"{kind}, a batch and a loss ({found.shown})" if not missing else f"{kind}; {missing}",
    )


def _model(scope: Scope, name: str) -> Built:
    """Return the model; one that cannot be built yet is an error of its constructor, which is said."""
    picked = scope.names.get(name) if name else None
    if name and picked is None:
        raise TargetError(f"no {name!r} in it", where=scope.where)
    return build_model(scope, picked, name)


def _unbuilt(kind: type[Any]) -> Built:
    """Return a model that nobody knows how to build, with a call in which each argument is to be written."""
    text = f"{kind.__name__}({', '.join(f'{one.name}=...' for one in required(kind))})"
    return Built(object.__new__(kind), Construction(text))  # of which only the forward's signature is read


def _to_fill_in(made: Built) -> Draft:
    """Return a draft whose batch is to be written by hand: a line for each argument."""
    names = [one.name for one in asked(made.model.forward) if one.required] or ["inputs"]
    lines = tuple(
        f"{name} = torch.randn(batch_size, 64)  # write what forward takes as {name}" for name in names
    )
    call = f"model({', '.join(names)})"
    empty = Draft(made.how.text, made.how.origin, lines=lines, batch=f"({', '.join(names)},)")
    return replace(
        empty, unpack=f"({', '.join(names)},)", loss=f"{call}.float().square().mean()  # write your loss"
    )


def _imports(file: Path, body: str, scope: Scope) -> str:
    """Return the line that takes from the file what the stubs speak of."""
    words = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    known = words - {"model", "batch", "loss", "torch", "batch_size", "data", "samples"}
    names = sorted(word for word in known if word in scope.names and not hasattr(builtins, word))
    package = package_of(file.parent)
    module = f"{package}.{file.stem}" if package else file.stem
    return f"from {module} import {', '.join(names)}\n\n\n" if names else "\n"
