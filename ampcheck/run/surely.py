"""Which calls of a script run for sure if the script runs to its end, as far as its source tells."""

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ampcheck.targets.reading import is_guard

if TYPE_CHECKING:
    from types import FrameType

#: A function of a file: its first line, as its code object has it, and its name.
Function = tuple[int, str]
#: The lines outside of every function.
MODULE: Function = (0, "<module>")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LATER = (*_FUNCTIONS, ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_LEAVES = (ast.Return, ast.Break, ast.Continue)


def functions(tree: ast.AST) -> dict[Function, list[ast.Call]]:
    """Return the calls that each function makes for sure when it is called."""
    found = (node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS))
    return {_name(node): list(_calls(node.body)) for node in found}


def surely_called(tree: ast.Module) -> dict[Function, list[ast.Call]]:
    """Return the same of the functions that run for sure, and of the lines outside of every function."""
    known = _by_words(tree)
    found = {MODULE: list(_calls(tree.body))}
    waiting = [(call, "") for call in found[MODULE]]
    while waiting:
        call, owner = waiting.pop()
        node, owner = known.get(_words(call.func, owner), (None, ""))
        if node is not None and _name(node) not in found:
            found[_name(node)] = calls = list(_calls(node.body))
            waiting += [(one, owner) for one in calls]
    return found


def _name(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)]), node.name


def _by_words(tree: ast.Module) -> dict[str, tuple[ast.FunctionDef | ast.AsyncFunctionDef | None, str]]:
    """Return functions by the words that call them, each with the class it belongs to; None where two have a name."""
    found: dict[str, tuple[ast.FunctionDef | ast.AsyncFunctionDef | None, str]] = {}
    for node in tree.body:
        parts = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = node.name if isinstance(node, ast.ClassDef) else ""
        for part in parts:
            if isinstance(part, _FUNCTIONS):
                words = f"{owner}.{part.name}" if owner else part.name
                words = owner if part.name == "__init__" and owner else words
                found[words] = (None, "") if words in found else (part, owner)
    return found


def _words(function: ast.expr, owner: str) -> str:
    """Return the words by which a call that stands in a method of a class, or in none, names what it calls."""
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute):
        held = function.value
        if isinstance(held, ast.Name):
            return f"{owner if held.id in {'self', 'cls'} else held.id}.{function.attr}"
        if isinstance(held, ast.Call) and isinstance(held.func, ast.Name):
            return f"{held.func.id}.{function.attr}"
    return ""


def _calls(body: Sequence[ast.stmt]) -> Iterator[ast.Call]:
    """Yield the calls that statements make for sure, if they run to their end."""
    for statement in body:
        expressions, inner = _parts(statement)
        for expression in expressions:
            yield from (node for node in _walk(expression, _evaluated) if isinstance(node, ast.Call))
        yield from _calls(inner)
        leaves = ast.Return if isinstance(statement, _LOOPS) else _LEAVES
        if any(isinstance(node, leaves) for node in _walk(statement, ast.iter_child_nodes)):
            return


def _parts(  # noqa: PLR0911  # one for each kind
    statement: ast.stmt,
) -> tuple[Sequence[ast.AST], Sequence[ast.stmt]]:
    """Return the expressions and the statements of a statement that run for sure."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return statement.decorator_list, ()
        case ast.ClassDef():
            return [*statement.bases, *statement.decorator_list], statement.body
        case ast.If():
            return [statement.test], statement.body if is_guard(statement) else ()
        case ast.For() | ast.AsyncFor():
            return [statement.iter], statement.body
        case ast.With() | ast.AsyncWith():
            return [item.context_expr for item in statement.items], statement.body
        case ast.Try() | ast.TryStar():
            return (), [*statement.body, *statement.finalbody]
        case ast.While():
            return [statement.test], ()
        case ast.Match():
            return [statement.subject], ()
    return [statement], ()


def _walk(node: ast.AST, parts: Callable[[ast.AST], Iterator[ast.AST]]) -> Iterator[ast.AST]:
    """Yield a node and what is below it, without what runs later; deep expressions are no reason to recurse."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, _LATER):
            yield node
            waiting += parts(node)


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of an expression that are evaluated whatever the others come to."""
    if isinstance(node, ast.IfExp):
        yield node.test
    elif isinstance(node, ast.BoolOp):
        yield node.values[0]
    elif not isinstance(node, ast.Assert):
        yield from ast.iter_child_nodes(node)


def running(path: str) -> frozenset[Function]:
    """Return the functions of a file that the caller runs within."""
    found = set()
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        if frame.f_code.co_filename == path:
            found.add((frame.f_code.co_firstlineno, frame.f_code.co_name))
        frame = frame.f_back
    return frozenset(found)
