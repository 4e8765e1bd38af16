"""Where in the user's program an exception was raised: module, operation, file and line."""

import ast
import linecache
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import torch

from ampcheck.observe.execution import Failed
from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.model.modules import ModuleTracker
from ampcheck.observe.source import is_user_file, running_line, shown_path
from ampcheck.observe.statistics.memory import tensors_of
from ampcheck.values.trace import Failure

_FUNCTIONAL = str(Path(torch.__file__).parent / "nn") + os.sep
_OPERATORS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.MatMult: "matmul",
    ast.Pow: "pow",
    ast.Mod: "remainder",
    ast.FloorDiv: "floor_divide",
}
#: Of torch, whose operators bear them in their names: torch.fft.rfft is aten::fft_rfft.
_NAMESPACES = frozenset({"fft", "linalg", "special", "sparse"})
#: What torch says where a precision is why it refuses an operation.
_REFUSALS = ("unsafe to autocast", "scalar type", "same dtype", "to have the same", "Half", "BFloat16")
#: Of a step that went on, behind the operation and its line.
CAUGHT = "raised an error because of half precision, which the script caught"
#: How allocators say that there is no memory; torch raises a plain RuntimeError on the CPU.
_NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "bad allocation",
    "std::bad_alloc",
)


def is_refusal(error: BaseException) -> bool:
    """Tell whether a precision is why torch refuses an operation."""
    return any(word in str(error) for word in _REFUSALS)


class Caught:
    """Operations that a precision refuses in a step that goes on: the script has caught what they raised."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._given: dict[Failure, list[weakref.ref[torch.Tensor]]] = {}  #: the parameters it was given

    def note(self, op: str, error: Exception, args: Iterable[Any]) -> None:
        """Take note of an operation that raised."""
        if not is_refusal(error):
            return
        file, line = running_line()
        roots = (tensor if tensor._base is None else tensor._base for tensor in tensors_of(args))
        found = [weakref.ref(tensor) for tensor in roots if tensor.is_leaf and tensor.requires_grad]
        trained = found if torch.is_grad_enabled() else []
        failure = _failure(error, "", op, shown_path(file), line)
        in_thread = threading.get_ident() != self._thread
        self._given.setdefault(replace(failure, in_thread=in_thread), []).extend(trained)

    def fetch(
        self, parameters: Iterable[tuple[str, str, torch.Tensor]]
    ) -> tuple[dict[str, int], tuple[Failure, ...]]:
        """Return what is not audited, and what has left a module without its gradients, given those of the step."""
        missed, failures = dict[str, int](), list[Failure]()
        modules = {id(tensor): module for module, _, tensor in parameters}
        for failure, given in self._given.items():
            held = [tensor for one in given if (tensor := one()) is not None]
            bare = next((one for one in held if gradient_of(one) is None and id(one) in modules), None)
            if bare is None:
                missed[f"{failure.op} ({failure.location}) {CAUGHT}"] = 1
            else:
                failures.append(replace(failure, module=modules[id(bare)]))
        return missed, tuple(failures)


def locate(
    error: BaseException, tracker: ModuleTracker | None = None, failed: Failed | None = None
) -> Failure:
    """Return where an exception comes from: the innermost frame of user code, and the module around it.

    `failed` is the last operation that raised; when that was in the backward, the place is the line of the
    forward that it belongs to.
    """
    module, op, file, line = "", "", "", 0
    for trace in _entries(error.__traceback__):
        owner = trace.tb_frame.f_locals.get("self")
        if tracker is not None and isinstance(owner, torch.nn.Module):
            module = tracker.name_of(owner) or module
        code = trace.tb_frame.f_code
        if is_user_file(code.co_filename):
            file, line = shown_path(code.co_filename), trace.tb_lineno
            op = _called(code, trace.tb_lasti)
        elif code.co_filename.startswith(_FUNCTIONAL):
            op = _called(code, trace.tb_lasti) or op
    if failed is not None and failed.error in _chain(error):
        op = failed.op.removesuffix("_")
        if failed.origin is not None:
            module = module or failed.origin.module
            if not file:
                file, line = failed.origin.file, failed.origin.line
    return _failure(error, module, op, file, line)


def _failure(error: BaseException, module: str, op: str, file: str, line: int) -> Failure:
    text = str(error).strip() or type(error).__name__
    return Failure(type(error).__name__, text.splitlines()[0], module, op, file, line)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that memory ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _NO_MEMORY)


def _chain(error: BaseException | None) -> Iterator[int]:
    while error is not None:
        yield id(error)
        error = error.__cause__ or error.__context__


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _called(code: CodeType, offset: int) -> str:
    """Return the name of the call that an instruction belongs to, '' when the source cannot be read."""
    positions = list(code.co_positions())[offset // 2]
    start, stop, left, right = positions
    if start is None or stop is None or left is None or right is None:
        return ""
    lines = [linecache.getline(code.co_filename, number) for number in range(start, stop + 1)]
    lines[-1] = lines[-1].encode()[:right].decode(errors="ignore")
    lines[0] = lines[0].encode()[left:].decode(errors="ignore")
    try:
        node = ast.parse("(" + "".join(lines).strip() + ")", mode="eval").body
    except SyntaxError:
        return ""
    return _name(node)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        called = node.func
        if not isinstance(called, ast.Attribute):
            return getattr(called, "id", "")
        space = getattr(called.value, "attr", getattr(called.value, "id", ""))
        return f"{space}_{called.attr}" if space in _NAMESPACES else called.attr
    return _OPERATORS.get(type(node.op), "") if isinstance(node, ast.BinOp) else ""
