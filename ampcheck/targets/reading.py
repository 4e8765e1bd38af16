"""What a Python file is, read from its text: a training script, or a file that defines models. Nothing is run."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from ampcheck.targets.notebook import code_of

#: Calls that train whatever they are called on.
TRAINS = frozenset({"backward", "manual_backward", "fit"})
#: Objects whose `train()` is a training loop, and not the mode of a module.
TRAINERS = ("trainer", "runner", "engine", "yolo", "experiment", "learner")
#: What stands in the names of objects whose `step()` changes weights.
STEPPED = ("optim", "scaler")
#: Imported files that are looked into, at most so many deep.
DEPTH = 4
#: Statements that only say what a name stands for.
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
#: Names of the file contract: who defines a batch at the top of a file means it to be audited.
BATCH_NAMES = frozenset({"batch", "batches", "make_batch", "example_inputs", "example_input"})
MODEL_NAMES = frozenset({"model", "make_model", "build_model", "get_model", "create_model", "net"})


@dataclass(frozen=True)
class Source:
    """A file, parsed."""

    path: Path
    text: str
    tree: ast.Module

    @cached_property
    def functions(self) -> dict[str, ast.AST]:
        """Return every function, method and class of the file by its own name; of equal names the last."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return {node.name: node for node in ast.walk(self.tree) if isinstance(node, kinds)}

    @cached_property
    def calls(self) -> list[ast.Call]:
        """Return every call in the file."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """Return the classes at the top of the file."""
        return {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}

    @cached_property
    def packages(self) -> frozenset[str]:
        """Return the packages that the file imports from anywhere."""
        nodes = list(ast.walk(self.tree))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        return frozenset(name.partition(".")[0] for name in names)

    @cached_property
    def trainers(self) -> frozenset[str]:
        """Return the names that stand for a trainer: what `...Trainer(...)` was assigned to."""
        made = (node for node in ast.walk(self.tree) if isinstance(node, ast.Assign))
        calls = (node for node in made if isinstance(node.value, ast.Call))
        trainers = (node for node in calls if _is_trainer(_last_name(node.value)))
        return frozenset(_last_name(target) for node in trainers for target in node.targets)

    @cached_property
    def imported(self) -> dict[str, Path]:
        """Return the names that are imported from files beside this one, and those files."""
        found: dict[str, Path] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                path = _beside(self.path, node.module or "", node.level)
                for alias in node.names:
                    deeper = _beside(self.path, f"{node.module or ''}.{alias.name}".strip("."), node.level)
                    if deeper or path:
                        found[alias.asname or alias.name] = deeper or path  # type: ignore[assignment]
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    path = _beside(self.path, alias.name, 0)
                    if path:
                        found[alias.asname or alias.name.partition(".")[0]] = path
        return found


@cache
def read_source(path: Path) -> Source | None:
    """Return a file, parsed; None for one that is no Python, which whoever runs it will say."""
    try:
        text = code_of(path)
        return Source(path, text, ast.parse(text))
    except (OSError, SyntaxError, ValueError):
        return None


def sources_of(path: Path, depth: int = DEPTH, seen: frozenset[Path] = frozenset()) -> Iterator[Source]:
    """Yield a file and those that it imports from beside it, each once on a way."""
    source = read_source(path)
    if source is None or path in seen:
        return
    yield source
    for other in sorted(set(source.imported.values())) if depth else ():
        yield from sources_of(other, depth - 1, seen | {path})


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file is."""

    trains_on_import: int = 0  #: line of the first statement outside of any guard that trains; 0 for none
    trains_as_main: bool = False  #: training begins when the file is run, and only then
    contract: bool = False  #: it defines a model and a batch to be audited

    @property
    def script(self) -> bool:
        """Tell whether the file is a script that trains."""
        return (bool(self.trains_on_import) or self.trains_as_main) and not self.contract


def read(path: Path) -> Reading:
    """Return what a file is."""
    source = read_source(path)
    if source is None:
        return Reading()
    training = _Training(source, DEPTH)
    first = next((node.lineno for node in training.top if training.begins(node)), 0)
    guarded = any(training.begins(node) for node in training.guarded)
    # A file without modules that does something when it is run: what it calls may lie in a package.
    calls = any(isinstance(part, ast.Call) for node in training.guarded for part in ast.walk(node))
    runs = calls and not training.defines_modules and _imports_a_framework(source)
    return Reading(first, not first and (guarded or runs), _contract(source) and not first)


def as_module(path: Path) -> tuple[Path, str] | None:
    """Return from where, and under which name, a file runs whose imports are relative; None where they are not.

    Python refuses such a file as a script.
    """
    source = read_source(path)
    body = source.tree.body if source is not None else []
    levels = [node.level for node in body if isinstance(node, ast.ImportFrom) and node.level]
    if not levels:
        return None
    root = path.parent.parents[max(levels) - 1]
    while (root / "__init__.py").is_file():
        root = root.parent
    return root, ".".join(path.relative_to(root).with_suffix("").parts)


def is_guard(node: ast.stmt) -> bool:
    """Tell whether a statement is `if __name__ == "__main__":`."""
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    sides = [node.test.left, *node.test.comparators]
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)


class _Training:
    """Which functions of a file train, and which of its statements begin with it."""

    def __init__(self, source: Source, depth: int) -> None:
        self._source, self._depth = source, depth
        outside = [node for node in source.tree.body if not isinstance(node, DEFINITIONS)]
        self.top = [node for node in outside if not is_guard(node)]
        self.guarded = [part for node in outside if is_guard(node) for part in node.body]  # type: ignore[attr-defined]
        self.functions = self._spread()

    @property
    def defines_modules(self) -> bool:
        """Tell whether a class of the file looks like a module."""
        return any(has_forward(node) for node in self._source.classes.values())

    def begins(self, node: ast.AST) -> bool:
        """Tell whether running a statement trains."""
        return any(self._trains(part) for part in ast.walk(node))

    def _spread(self) -> frozenset[str]:
        """Return the functions that train, and those that call or hand on one that does."""
        known = {
            name
            for name, node in self._source.functions.items()
            if any(_is_training(part, self._source.trainers) for part in ast.walk(node))
        }
        for name, path in self._source.imported.items() if self._depth else ():
            known |= self._trained_in(name, path)
        # A class trains where a method of that name is called, and not where it is merely built.
        self._known = frozenset(known - self._source.classes.keys()) | (known & self._source.imported.keys())
        while True:
            more = {
                name
                for name, node in self._source.functions.items()
                if not isinstance(node, ast.ClassDef) and any(self._trains(part) for part in ast.walk(node))
            }
            if more <= self._known:
                return self._known
            self._known |= more

    @cached_property
    def _methods(self) -> dict[str, frozenset[str]]:
        """Return the methods of what the file makes of its own classes, by the name that it gives that."""
        of_class = {
            name: frozenset(part.name for part in node.body if isinstance(part, ast.FunctionDef))
            for name, node in self._source.classes.items()
        }
        return {
            _last_name(target): of_class[_last_name(node.value.func)]
            for node in ast.walk(self._source.tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            for target in node.targets
            if _last_name(node.value.func) in of_class
        }

    def _trained_in(self, name: str, path: Path) -> set[str]:
        """Return the names by which what was imported from a file can train here."""
        other = read_source(path)
        if other is None or path == self._source.path:
            return set()
        inner = _Training(other, self._depth - 1).functions
        made = other.classes.get(name)
        if made is not None:
            return {name} if any(getattr(part, "name", "") in inner for part in made.body) else set()
        if name in other.functions:
            return {name} & inner
        return {name, *inner} if inner else set()  # the file itself

    def _trains(self, node: ast.AST) -> bool:
        if _is_training(node, self._source.trainers):
            return True
        if not isinstance(node, ast.Call):
            return False
        called = node.func
        if isinstance(called, ast.Name) and called.id in self._known:
            return True
        if isinstance(called, ast.Attribute) and called.attr in self._known:
            methods = self._methods.get(_last_name(called.value), ())
            if called.attr not in _EVERYDAY or called.attr in methods:
                return True
        handed = [*node.args, *(keyword.value for keyword in node.keywords)]
        return any(isinstance(value, ast.Name) and value.id in self._known for value in handed)


#: Methods that everything has: a call of one says nothing of who trains.
_EVERYDAY = frozenset({"forward", "eval", "to", "append", "step", "update", "__init__", "save", "load"})


def _is_training(node: ast.AST, trainers: frozenset[str]) -> bool:
    """Tell whether a call is one that trains by itself: a backward, `fit`, `trainer.train()`, `optimizer.step()`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name, owner = node.func.attr, _last_name(node.func.value)
    if name in TRAINS:
        return not owner.lower().startswith(("tokenizer", "pca", "svm", "vectorizer", "label_encoder"))
    if name == "step":  # gradients need no backward: torch.autograd.grad and torch.func return them
        return any(word in owner.lower() for word in STEPPED)
    return name in {"train", "learn"} and (owner in trainers or _is_trainer(owner))


def _is_trainer(name: str) -> bool:
    return any(word in name.lower() for word in TRAINERS)


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return _last_name(node.func) if isinstance(node, ast.Call) else ""


def has_forward(node: ast.ClassDef) -> bool:
    """Tell whether a class looks like a module: it has a forward or a training step, or is called one."""
    methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    bases = [_last_name(base) for base in node.bases]
    return bool(methods & {"forward", "training_step"}) or "Module" in bases


def _contract(source: Source) -> bool:
    """Tell whether the top of a file defines a model and a batch under the names that ampcheck looks for."""
    names = set(_top_names(source.tree.body))
    return bool(names & MODEL_NAMES) and bool(names & BATCH_NAMES)


def _top_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
                yield from (part.id for part in parts if isinstance(part, ast.Name))


def _imports_a_framework(source: Source) -> bool:
    known = {"torch", "lightning", "pytorch_lightning", "transformers", "accelerate", "keras", "torchvision"}
    return bool(source.packages & known) or bool(source.imported)


def _beside(path: Path, dotted: str, level: int) -> Path | None:
    """Return the file that an import names, where it lies in the folder of the importing one or in its package."""
    folder = path.parent
    for _ in range(level - 1):
        folder = folder.parent
    tops = [folder] if level else [folder, *_roots(folder)]
    parts = [part for part in dotted.split(".") if part]
    for top in tops:
        place = top.joinpath(*parts)
        for found in (place.with_suffix(".py") if parts else place / "__init__.py", place / "__init__.py"):
            if found.is_file() and found != path:
                return found
    return None


def _roots(folder: Path) -> list[Path]:
    """Return the folders from which a package that a folder belongs to is imported, and the current one."""
    found = []
    while (folder / "__init__.py").is_file():
        folder = folder.parent
        found.append(folder)
    return [*found, Path.cwd()]
