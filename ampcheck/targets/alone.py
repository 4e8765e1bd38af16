"""What of a script can be audited without its data and its arguments: the models that it trains, read from its text."""

import ast
from collections.abc import Iterator
from pathlib import Path

from ampcheck.targets.reading import DEPTH, Source, has_forward, read_source
from ampcheck.targets.userfile import shown

#: Functions of libraries that build a model by its name, and the scheme of a target of that name.
BUILDERS = {"create_model": "timm"}
MOST = 6


def models_alone(path: Path) -> list[str]:
    """Return targets for the models of a script: its classes, those that it imports from beside it, or by name."""
    source = read_source(path)
    if source is None:
        return []
    targets = [f"{shown(path)}:{name}" for name in whole_classes(source)]
    targets = targets or list(dict.fromkeys(_beside(source, DEPTH)))
    return (targets or list(dict.fromkeys(_by_name(source))))[:MOST]


def whole_classes(source: Source) -> list[str]:
    """Return the classes of a file that look like modules and are no part of another, nor a loss."""
    known = {name for name, node in source.classes.items() if has_forward(node)}
    known = {name for name in known if not name.endswith(("Loss", "Criterion"))}
    parts = {part for name in known for part in parts_of(name, source, known)}
    bases = {base.id for name in known for base in source.classes[name].bases if isinstance(base, ast.Name)}
    return [name for name in source.classes if name in known - parts - bases] or sorted(known)


def parts_of(name: str, source: Source, known: set[str]) -> Iterator[str]:
    """Yield the classes that a class, or a call that builds it, speaks of."""
    nodes: list[ast.AST] = [source.classes[name]] if name in source.classes else []
    for call in source.calls:
        if isinstance(call.func, ast.Name) and call.func.id == name:
            nodes += [*call.args, *(keyword.value for keyword in call.keywords)]
    for node in nodes:
        bases = {id(base) for base in node.bases} if isinstance(node, ast.ClassDef) else set()
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in known - {name} and id(part) not in bases:
                yield part.id


def _beside(source: Source, depth: int) -> Iterator[str]:
    """Yield the modules of the project that a file imports, or that what it imports does."""
    for name, path in source.imported.items():
        other = read_source(path)
        if other is None or path == source.path:
            continue
        whole = whole_classes(other)
        if name in other.classes:
            whole = [name] if name in whole else []
        yield from (f"{shown(path)}:{one}" for one in whole)
        if not whole and depth:
            yield from _beside(other, depth - 1)


def _by_name(source: Source) -> Iterator[str]:
    """Yield the models of libraries that a script builds by name: `timm.create_model("x")`, `models.resnet18()`."""
    vision = {
        alias.asname or alias.name
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "torchvision.models"
        for alias in node.names
    }
    for node in source.calls:
        called = ast.unparse(node.func)
        owner, _, name = called.rpartition(".")
        first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
        if name in BUILDERS and isinstance(first, str) and first:
            yield f"{BUILDERS[name]}:{first}"
        elif name.islower() and (owner in {"models", "torchvision.models"} or (not owner and name in vision)):
            yield f"torchvision:{name}"
