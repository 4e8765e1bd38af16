"""A script's lines and calls, written anew in FP32."""

import ast
import linecache
from collections.abc import Iterable, Iterator

from ampcheck.diagnose.rules.loop_state import device_of
from ampcheck.values.report import Report
from ampcheck.values.trace import Site

#: What a module's result is called that a line of its own computes.
_RESULT = "result"
#: How many statements are written anew; longer ones are described.
_MOST = 4
_SIMPLE = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr


def in_fp32_but_for_modules(report: Report, origin: Site, last: int = 0) -> tuple[str, ...]:
    """Return the lines from an operation's to the `last` one, with what their modules give as FP32 numbers.

    None where they call no modules, or one that the operation is within, or where more would have to be written anew.
    """
    statements = _statements(origin.file, origin.line, max(last, origin.line))
    calls = [call for one in statements for call in _module_calls(report, one)]
    made = {name for one in statements for name in _names(one, ast.Store)}
    if not calls or any(
        _is_within(report, origin, call) or made & set(_names(call, ast.Load)) for call in calls
    ):
        return ()
    nodes = nodes_of("".join(linecache.getlines(origin.file)))
    taken = {name for one in nodes for name in _names(one, ast.Store)}
    before: list[str] = []
    names: dict[int, str] = {}
    for call in calls:
        names[id(call)] = f"{_RESULT}_{len(before) + 1}" if before or _RESULT in taken else _RESULT
        before.append(f"{names[id(call)]} = {ast.unparse(call)}")
    wide = [_Widened(names).visit(one) for one in statements]
    functions = {ast.unparse(one.func) for one in nodes if isinstance(one, ast.Call)}
    functions |= {one.asname or one.name for one in nodes if isinstance(one, ast.alias)}
    read = {name for one in wide for name in _names(one, ast.Load) if not name.isupper()}
    others = sorted(read - {"self", "torch", *functions, *made, *names.values()})
    also = f"  # with .float() on {' and '.join(others)}, where that is a tensor" if others else ""
    region = f"with torch.autocast({device_of(report)}, enabled=False):{also}"
    return (*before, region, *(f"    {ast.unparse(one)}" for one in wide))


def called_as(func: ast.expr) -> str:
    """Return by which name a function of a module, or a method, is called."""
    return func.attr if isinstance(func, ast.Attribute) else ""


def in_fp32(call: ast.Call) -> str:
    """Return a call of a function, or of a method, with FP32 numbers; '' where it is written in another way."""
    method = not call.args and isinstance(call.func, ast.Attribute)
    given = call.args[0] if call.args else getattr(call.func, "value", None)
    by_name = any(one.arg in {None, "input"} for one in call.keywords)
    if given is None or isinstance(given, ast.Starred) or by_name:
        return ""
    plain = isinstance(given, ast.Name | ast.Call | ast.Attribute | ast.Subscript)
    wide = f"{ast.unparse(given) if plain else f'({ast.unparse(given)})'}.float()"
    rest = [ast.unparse(one) for one in call.args[1:]]
    rest += [f"{one.arg}={ast.unparse(one.value)}" for one in call.keywords]
    func = f"{wide}.{called_as(call.func)}" if method else ast.unparse(call.func)
    return f"{func}({', '.join(rest if method else [wide, *rest])})  # in place of {ast.unparse(call)}"


class _Widened(ast.NodeTransformer):
    """Puts the name of a result, as FP32 numbers, in the place of the call that made it."""

    def __init__(self, names: dict[int, str]) -> None:
        """Take the names, by call."""
        self._names = names

    def visit_Call(self, node: ast.Call) -> ast.AST:  # as ast calls it
        """Replace a call, or what is called within it."""
        name = self._names.get(id(node))
        return self.generic_visit(node) if name is None else ast.parse(f"{name}.float()", mode="eval").body


def nodes_of(text: str) -> list[ast.AST]:
    """Return all nodes of a code; none where it is no whole one."""
    try:
        return [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError, RecursionError):
        return []


def _statements(file: str, first: int, last: int) -> list[ast.stmt]:
    """Return the simple statements of one block on these lines; none where there are others, or many."""
    for node in nodes_of("".join(linecache.getlines(file))):
        for block in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
            held = [one for one in block if isinstance(one, ast.stmt)] if isinstance(block, list) else []
            found = [one for one in held if one.lineno <= last and (one.end_lineno or 0) >= first]
            if found and found[0].lineno <= first and all(isinstance(one, _SIMPLE) for one in found):
                whole = (found[-1].end_lineno or 0) >= last and len(found) <= _MOST
                return found if whole else []
    return []


def _module_calls(report: Report, statement: ast.AST) -> Iterator[ast.Call]:
    """Yield a statement's outermost calls of modules."""
    waiting: list[ast.AST] = [statement]
    for node in waiting:  # which grows
        if isinstance(node, ast.Call) and _called(report, node):
            yield node
        elif not isinstance(node, ast.Lambda | ast.comprehension):
            waiting += ast.iter_child_nodes(node)


def _called(report: Report, call: ast.Call) -> list[str]:
    """Return the paths of modules that a call may be of: `model(x)`, `self.head(x)`, `self.blocks[0](x)`."""
    func, known = call.func, [one.path for one in report.low.modules]
    if isinstance(func, ast.Subscript):  # of a list of modules
        func, known = func.value, [path.rpartition(".")[0] for path in known]
    roots = {path.partition(".")[0] for path in known}
    if isinstance(func, ast.Name):
        return [path for path in known if path == func.id]
    names = ast.unparse(func).split(".") if isinstance(func, ast.Attribute) else []
    if not names or names[0] not in {"self", *roots}:
        return []
    tail = ".".join(names[1:])
    return [path for path in known if path.endswith(f".{tail}")]


def _is_within(report: Report, origin: Site, call: ast.Call) -> bool:
    return any(f"{origin.module}.".startswith(f"{path}.") for path in _called(report, call))


def _names(node: ast.AST, kind: type[ast.expr_context]) -> Iterable[str]:
    return (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, kind))
