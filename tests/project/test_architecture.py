"""The shape of the package, checked by the machine."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import ampcheck

PACKAGE = Path(ampcheck.__file__).parent
#: A unit may import from the lines above its own, and from within itself. Functions may not import around this.
LAYERS = [
    {"values"},
    {"targets", "observe"},
    {"diagnose"},
    {"saved"},
    {"fix", "compare"},
    {"inference"},
    {"run", "renderers"},
    {"api", "integrations", "bench"},
    {"cli", "pytest_plugin"},
    {"__main__"},
]
#: Every layer may import these.
GROUND = {"errors", "gc_pause"}
RANK = {name: rank for rank, layer in enumerate([GROUND, *LAYERS]) for name in layer}
#: What may load torch when it is imported.
TORCH = {"observe", "targets", "fix", "inference", "run", "api", "integrations", "__main__"}
#: In these, what a reader of reports needs does not load torch either.
LIGHT = [
    "fix.apply_plan",
    "fix.patch",
    "fix.search",
    "run.launch_script",
    "run.progress_line",
    "run.tensorboard",
]
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
MODULES = {path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in FILES}


def unit(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path):
    """Return what a file imports, functions too. Imports for types alone do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            assert node.module != "ampcheck", f"{path.name}: the package imports from its own front"
            names.append(node.module or "")
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name for name in names if name.startswith("ampcheck.")}


@pytest.mark.parametrize("name", sorted(RANK))
def test_imports_point_up(name):
    allowed = {other for other in RANK if RANK[other] < RANK[name]} | {name}
    for path in FILES:
        if unit(path) == name:
            wrong = {module for module in imported(path) if module.split(".")[1] not in allowed}
            assert not wrong, f"{path} imports {wrong}"


def test_no_circle_among_files():
    known = set(MODULES.values())
    graph = {name: imported(path) & known - {name} for path, name in MODULES.items()}
    assert list(TopologicalSorter(graph).static_order())


def test_files_and_functions_stay_small():
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 340, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name} is too long"


def test_the_top_folder_fits_on_a_screen():
    assert {unit(path) for path in FILES} == set(RANK)
    assert len(RANK) <= 20


def test_the_tests_mirror_the_package():
    tests = Path(__file__).parents[1]
    folders = {path.parent.name for path in tests.rglob("test_*.py") if "sample_project" not in path.parts}
    assert folders <= set(RANK) | {"project", "benchmarks", "people", "gpu"}


def test_the_pure_half_does_not_load_torch():
    pure = [name.removeprefix("ampcheck.") for path, name in MODULES.items() if unit(path) not in TORCH]
    pure = [name for name in pure if not name.startswith("bench.running") and "pytest_plugin" not in name]
    code = f"import sys, importlib\nfor name in {sorted(pure) + LIGHT!r}: importlib.import_module('ampcheck.' + name)\n"
    code += "assert 'torch' not in sys.modules, 'torch was loaded'\nassert 'rich' not in sys.modules, 'rich was loaded'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_public_names():
    assert len(ampcheck.__all__) <= 15
    assert set(ampcheck.__all__) == set(ampcheck._HOMES)
    for name in ampcheck.__all__:
        assert getattr(ampcheck, name).__name__ == name
    with pytest.raises(AttributeError, match="it offers"):
        ampcheck.nonsense  # noqa: B018


def test_no_public_name_is_also_a_module():
    assert not set(ampcheck.__all__) & set(RANK)
