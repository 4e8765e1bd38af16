"""The shape of the package, checked by the machine."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ampcheck

PACKAGE = Path(ampcheck.__file__).parent
#: A unit may import from lines above its own, and from within itself.
LAYERS = [
    {"errors", "formats", "search", "imports", "garbage"},
    {"stats"},
    {"trace", "plan", "loop", "settings"},
    {"wording", "findings", "patch", "launch", "scalars"},
    {"outcome", "standing"},
    {"report", "observe", "targets"},
    {"tables", "landscape", "scaling", "evidence", "flat", "applying", "config"},
    {"rules", "headline", "remarks", "flat_advice", "flat_loop", "verify", "training", "groups"},
    {"codec", "select", "merge", "trials", "baseline"},
    {"instead", "nearest", "differences", "flat_baseline", "ranks"},
    {"advise", "comparison"},
    {"renderers", "audit", "dry", "complaint", "script"},
    {"expectations", "children"},
    {"api", "watching"},
    {"integrations"},
    {"bench"},
    {"cli", "pytest_plugin"},
    {"__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
#: What may load torch when it is imported.
TORCH = {
    "groups",
    "observe",
    "applying",
    "verify",
    "training",
    "trials",
    "instead",
    "advise",
    "audit",
    "dry",
    "api",
    "script",
    "watching",
    "ranks",
    "integrations",
}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
#: Lazily, a plan reaches the half of it that needs torch, and a report the ways to write it down.
LATE = {
    ("plan", "applying"),
    ("report", "renderers"),
    ("cli", "audit"),
    ("cli", "dry"),
    ("cli", "script"),
}


def unit(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path):
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            assert node.module != "ampcheck", f"{path.name}: the package imports from its own front"
            names.append(node.module or "")
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("ampcheck.")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_up(path):
    own = unit(path)
    allowed = {name for name in RANK if RANK[name] < RANK[own]} | {own}
    assert {(own, name) for name in imported(path) - allowed} <= LATE


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_files_and_functions_stay_small(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 340
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{node.name} is too long"


def test_every_unit_has_a_layer():
    assert {unit(path) for path in FILES} == set(RANK)


def test_the_pure_half_does_not_load_torch():
    pure = sorted(set(RANK) - TORCH - {"__main__"})
    code = f"import sys, importlib\nfor name in {pure!r}: importlib.import_module('ampcheck.' + name)\n"
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
