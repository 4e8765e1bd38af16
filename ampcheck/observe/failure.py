"""Where in the user's program an exception was raised: module, operation, file and line."""

import ast
import linecache
from collections.abc import Iterator
from types import CodeType, TracebackType

import torch

from ampcheck.observe.modules import ModuleTracker
from ampcheck.observe.source import is_user_file, shown_path
from ampcheck.trace import Failure


def locate(error: BaseException, tracker: ModuleTracker | None = None) -> Failure:
    """Return where an exception comes from: the innermost frame of user code, and the module around it."""
    module, op, file, line = "", "", "", 0
    for trace in _entries(error.__traceback__):
        owner = trace.tb_frame.f_locals.get("self")
        if tracker is not None and isinstance(owner, torch.nn.Module):
            module = tracker.name_of(owner) or module
        code = trace.tb_frame.f_code
        if is_user_file(code.co_filename):
            file, line = shown_path(code.co_filename), trace.tb_lineno
            op = _called(code, trace.tb_lasti)
    text = str(error).strip() or type(error).__name__
    return Failure(type(error).__name__, text.splitlines()[0], module, op, file, line)


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
        return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    if isinstance(node, ast.BinOp):
        operators = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul", ast.Pow: "pow"}
        return operators.get(type(node.op), "")
    return ""
