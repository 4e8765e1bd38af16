"""A plan's change in the form in which it is printed: put to work on the model and run before anybody reads it."""

import ast
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from math import log2
from pathlib import Path
from types import ModuleType
from typing import Any

from ampcheck.fix.applied import patched
from ampcheck.fix.patch import LOOP, SKETCH
from ampcheck.fix.verify import Lab
from ampcheck.observe.cuda_on_cpu.stand_in import autocast_stands_in
from ampcheck.observe.dtypes import DTYPES
from ampcheck.observe.model.structure import modules
from ampcheck.values.plan import Plan


def proved(forms: Iterable[str], plan: Plan, file: Path | None, lab: Lab) -> str:
    """Return the first form of a plan's change that heals the step; the last one as a sketch where none does.

    '' where there is no form.
    """
    dtype, scale = DTYPES.get(plan.precision), plan.scaler.init_scale if plan.scaler else 1.0
    device, form = lab.step.device.type, ""
    for form in forms:
        if dtype is None or (plan.fp32_lines and not _is_diff(form)):
            continue  # the reader has to do more than it says
        with ExitStack() as undo:
            change = partial(_put_to_work, form, file, device, undo)
            if not lab.trial(dtype, round(log2(scale)), change=change).harmed:
                return form
    return form and SKETCH + form


def _is_diff(form: str) -> bool:
    return form.startswith("---")


def _put_to_work(form: str, file: Path | None, device: str, undo: ExitStack, model: Any) -> None:
    """Change a model as a text says, with no names but those that the reader of the text has."""
    if _is_diff(form) and file is not None:
        with autocast_stands_in(device):  # without CUDA, a region for it warns
            _redefine(file, form, model, undo)
        return
    setup, begins, loop = form.partition(LOOP)
    compile(begins + loop, "<loop>", "exec")
    exec(compile(setup, "<lines to paste>", "exec", dont_inherit=True), {"model": model})  # noqa: S102


def _redefine(file: Path, diff: str, model: Any, undo: ExitStack) -> None:
    """Give the model's modules the classes of the changed file, and its functions their code, among the file's names.

    Only what the diff changes is run again: the rest of the file may train, or write.
    """
    text = file.read_text(encoding="utf-8")
    known = {ast.dump(node) for node in ast.parse(text).body if not _of_the_future(node)}
    changed = [node for node in ast.parse(patched(text, diff)).body if ast.dump(node) not in known]
    for node in changed:
        if isinstance(node, ast.ClassDef):
            node.decorator_list = []  # they may write the class down somewhere, and have done so
    kinds = {node.name for node in changed if isinstance(node, ast.ClassDef)}
    own = next(one for one in [*sys.modules.values()] if getattr(one, "__file__", None) == str(file))
    meant = [one for one in modules(model) if type(one).__name__ in kinds and _is_of(own, type(one))]
    if {type(module).__name__ for module in meant} != kinds:
        raise LookupError(f"the model has no module of a class that the change of {file.name} is about")
    names = {**vars(own)}
    exec(compile(ast.Module(changed, []), str(file), "exec", dont_inherit=True), names)  # noqa: S102
    for module in meant:
        module.__class__ = names[type(module).__name__]
    for name in (node.name for node in changed if isinstance(node, ast.FunctionDef)):
        function = vars(own)[name]
        undo.callback(setattr, function, "__code__", function.__code__)
        function.__code__ = names[name].__code__


def _is_of(module: ModuleType, kind: type) -> bool:
    """Tell whether a class is one of a Python module."""
    return sys.modules.get(kind.__module__) is module


def _of_the_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
