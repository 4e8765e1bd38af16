"""Running the user's file: importing it under a name of its own, and saying where in it something failed."""

import ast
import importlib
import importlib.util
import itertools
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from ampcheck.errors import TargetError
from ampcheck.targets.notebook import code_of
from ampcheck.targets.reading import DEFINITIONS, read

OWN_FOLDER = Path(__file__).resolve().parents[1]
INSTALLED = ("site-packages", "dist-packages")


@dataclass(slots=True)
class Imports:
    """A context in which a folder is importable; outside, neither it nor its modules are visible.

    Where the folder is a package, that is importable too, from the folder that it lies in.
    """

    folder: Path
    #: The dotted name of the package that the folder is, "" if it is none.
    package: str = ""
    modules: dict[str, ModuleType] = field(default_factory=dict)
    #: What the user's code itself has put on the path.
    added: list[str] = field(default_factory=list)
    before: set[str] = field(default_factory=set)
    path: list[str] = field(default_factory=list)
    depth: int = 0

    def __enter__(self) -> Self:
        """Make the folder and what was imported from it visible."""
        self.depth += 1
        if self.depth == 1:
            self.path = list(sys.path)
            sys.path[:0] = [*self.added, *self._entries()]
            # A file written a moment ago must be found too.
            importlib.invalidate_caches()
            self.before = set(sys.modules)
            for name, module in self.modules.items():
                sys.modules.setdefault(name, module)
        return self

    def __exit__(self, kind: object, error: object, trace: TracebackType | None) -> None:
        """Keep aside what came from the folder, and take the folder off the path."""
        self.depth -= 1
        if self.depth:
            return
        self.added = [entry for entry in sys.path if entry not in (*self.path, *self._entries())]
        sys.path[:] = self.path
        for name in [name for name in sys.modules if name not in self.before]:
            top = sys.modules.get(name.partition(".")[0])
            if name in self.modules or (top is not None and self._beside(top)):
                self.modules[name] = sys.modules[name]
        for name in self.modules.keys() - self.before:
            sys.modules.pop(name, None)

    def _entries(self) -> list[str]:
        """Return what goes on the path: the folder, and the one that holds the package."""
        above = [str(self.folder.parents[self.package.count(".")])] if self.package else []
        return [str(self.folder), *above]

    def _beside(self, module: ModuleType) -> bool:
        """Say whether a top-level module lies directly in the folder, or is the package that the folder is in."""
        path = getattr(module, "__file__", None)
        places = [path] if path else list(getattr(module, "__path__", []))
        for place in map(Path, places):
            root = place.parent if place.name == "__init__.py" or not place.is_dir() else place
            is_package = place.name == "__init__.py" or place.is_dir()
            if str(root.parent if is_package else root) in self._entries() and root != OWN_FOLDER:
                return True
        return False


@dataclass(frozen=True, slots=True)
class UserModule:
    """A module of the user's, imported, with the file it lies in and the context it runs in."""

    module: ModuleType
    file: Path
    imports: Imports
    note: str = ""  #: what was left out of it


def import_file(path: Path) -> UserModule:
    """Run a file as a module under a fresh name; `if __name__ == "__main__"` does not run, and nothing trains."""
    package = package_of(path.parent)
    imports = Imports(path.parent, package)
    with imports, user_code(path):
        tree, note = _without_training(path)
        code = compile(tree, str(path), "exec", dont_inherit=True)
        name = f"{package}.{_fresh_name(path.stem)}".lstrip(".")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec) if spec else ModuleType(name)
        module.__file__ = str(path)
        imports.modules[name] = sys.modules[name] = module  # dataclasses and pickle look it up
        exec(code, module.__dict__)  # noqa: S102
    return UserModule(module, path, imports, note)


def _without_training(path: Path) -> tuple[Any, str]:
    """Return the code of a file up to where it begins to train, with the definitions after that."""
    text = code_of(path)
    begins = read(path).trains_on_import
    if not begins:
        return text, ""
    tree = ast.parse(text)
    kept = [node for node in tree.body if node.lineno < begins or isinstance(node, DEFINITIONS)]
    # What a script does before it trains may need a GPU, or its data: a model of the file needs neither.
    tree.body = [node if isinstance(node, DEFINITIONS) else _tried(node) for node in kept]
    return tree, f"the file trains when it is imported: it was run up to line {begins}"


def _tried(node: ast.stmt) -> ast.stmt:
    """Return a statement that does nothing where it fails."""
    attempt = ast.parse("try:\n    pass\nexcept Exception:\n    pass").body[0]
    if isinstance(attempt, ast.Try):
        attempt.body = [node]
    return ast.fix_missing_locations(ast.copy_location(attempt, node))


def import_dotted(name: str) -> UserModule:
    """Import a module by its dotted name, with the current folder on the path as `python -m` has it."""
    imports = Imports(Path.cwd())
    with imports:
        top = name.partition(".")[0]
        found = importlib.util.find_spec(top)
        if not found:
            raise TargetError(f"no module named {top!r} (for {name!r}); check the spelling or install it")
        origin = Path(found.origin) if found.origin else Path(name)
        with user_code(origin):
            module = importlib.import_module(name)
    return UserModule(module, Path(getattr(module, "__file__", None) or origin), imports)


def locate(error: BaseException, file: Path) -> str:
    """Return "file:line" of the innermost frame of an error in the user's file or its folder, or ""."""
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename, file):
        return f"{shown(error.filename)}:{error.lineno or 1}"
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    for filename, line in reversed(frames):
        if _is_users(filename, file):
            return f"{shown(filename)}:{line}"
    return ""


def shown(path: str | Path) -> str:
    """Return a path as a person would write it from the current folder."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return str(path)
    return str(path) if relative.startswith("..") else relative


def explained(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    lines = str(error.msg if isinstance(error, SyntaxError) else error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextmanager
def user_code(file: Path) -> Iterator[None]:
    """Turn whatever the user's code raises into a target error that points at their line."""
    try:
        yield
    except TargetError:
        raise
    except SystemExit as error:
        where = locate(error, file) or shown(file)
        raise TargetError(
            f"the file calls exit({error.code!r}) on import; move that under `if __name__ == '__main__':`",
            where=where,
        ) from error
    except Exception as error:
        raise TargetError(explained(error), where=locate(error, file) or shown(file)) from error


def _is_users(filename: str, file: Path) -> bool:
    path = Path(filename)
    if path == file:
        return True
    if filename.startswith("<") or not path.is_relative_to(file.parent) or path.is_relative_to(OWN_FOLDER):
        return False
    return not any(part in INSTALLED for part in path.relative_to(file.parent).parts)


def package_of(folder: Path) -> str:
    """Return the dotted name of the package that a folder is, as its relative imports need it, or ""."""
    names: list[str] = []
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names)


def _fresh_name(stem: str) -> str:
    safe = "".join(c if c.isalnum() else "_" for c in stem)
    names = (f"ampcheck_target_{safe}{f'_{count}' * (count > 1)}" for count in itertools.count(1))
    return next(name for name in names if name not in sys.modules)
