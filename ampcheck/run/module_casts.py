"""Finds in the source of a script the lines that cast a module to half precision."""

import ast
from collections.abc import Iterator, Sequence

from ampcheck.values.formats import HALVES

#: Methods that cast, and what half precision is called.
CASTS = frozenset({"half", "bfloat16", "to", "type"})
HALF_WORDS = frozenset({*HALVES, "half"})
#: Methods of modules, not of tensors.
_OF_MODULES = frozenset("parameters named_parameters state_dict load_state_dict train eval modules".split())
#: How often a dtype is followed from an argument to the next.
_GIVEN_ON = 3


def module_casts(nodes: Sequence[ast.AST]) -> Iterator[int]:
    """Yield the lines of a file that cast a module to half precision."""
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    halves = _names_of_halves(nodes, calls)
    owners = [one.value for one in nodes if isinstance(one, ast.Attribute) and one.attr in _OF_MODULES]
    modules = {_last(one) for one in (*(call.func for call in calls), *owners)} - {""}
    named = {id(call): targets for targets, call in _assigned(nodes)}
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for call in calls:
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in CASTS or not _asks_half(call, halves):
            continue
        called = _last(func.value.func) if isinstance(func.value, ast.Call) else ""
        made = called[:1].isupper()
        # What `mean = x.mean().half()` casts is a number, although a mean is called.
        names = {_last(func.value), *map(_last, named.get(id(call), ()))} - {called}
        if made or id(call) in statements or names & modules:
            yield call.lineno


def _asks_half(call: ast.Call, halves: frozenset[str]) -> bool:
    """Tell whether a cast is one to half precision."""
    given = [*call.args, *(one.value for one in call.keywords)]
    return _last(call.func) in HALF_WORDS or any(
        _last(one) in halves and not _is_of_tensor(one) for one in given
    )


def _is_of_tensor(node: ast.expr) -> bool:
    """Tell whether an expression is the dtype of something, as in `x.to(y.dtype)`, which may be any."""
    return isinstance(node, ast.Attribute) and node.attr == "dtype" and _last(node.value) != "self"


def _names_of_halves(nodes: Sequence[ast.AST], calls: list[ast.Call]) -> frozenset[str]:
    """Return the names of half precision: torch's, and those of variables and arguments that are given it."""
    bound = [(_last(target), value) for targets, value in _assigned(nodes) for target in targets]
    takes = dict(_arguments(nodes))
    for call in calls:
        bound += zip(takes.get(_last(call.func), ()), call.args, strict=False)
        bound += [(one.arg or "", one.value) for one in call.keywords]
    found = set(HALF_WORDS)
    for _ in range(_GIVEN_ON):
        found |= {
            name for name, value in bound if name and any(_last(one) in found for one in _either(value))
        }
    return frozenset(found)


def _assigned(nodes: Sequence[ast.AST]) -> Iterator[tuple[list[ast.expr], ast.expr]]:
    """Yield what values are assigned to, and the values."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield [node.target], node.value


def _arguments(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of functions and classes, and of the arguments that a call gives by their order."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            yield node.name, [one.arg for one in node.args.args if one.arg != "self"]
        elif isinstance(node, ast.ClassDef):
            for _, taken in [pair for pair in _arguments(node.body) if pair[0] == "__init__"]:
                yield node.name, taken


def _either(value: ast.expr) -> tuple[ast.expr, ...]:
    """Return what an expression may be."""
    return (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)


def _last(node: ast.expr) -> str:
    """Return the last word of a name such as `self.model`; '' for what has none."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
