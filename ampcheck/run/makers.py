"""Finds in the source of a script the lines that make what it holds in half precision."""

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from math import inf
from pathlib import Path

from ampcheck.observe.source import in_library
from ampcheck.run.module_casts import CASTS, HALF_WORDS, module_casts
from ampcheck.values.formats import HALVES
from ampcheck.values.loop import Kind
from ampcheck.values.maker import BEGINS_SCALE, CASTS_MODULE, LOWERS_SCALE, MAKES_SCALE, Maker
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase
from ampcheck.values.wording import location

_LIKE = frozenset(
    "clone deepcopy zeros_like ones_like empty_like full_like new_zeros new_ones new_full new_empty".split()
)
#: What makes a tensor that was none before.
_BEGIN = _LIKE.union("zeros ones empty full tensor as_tensor rand randn arange eye".split())
_REGISTER = frozenset({"register_buffer", "register_parameter", "setdefault"})
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.NamedExpr)


def makers(report: Report) -> tuple[Maker, ...]:
    """Return what makes the half-precision tensors that a report names, or that a line in it writes into."""
    sites = [site for site in report.low.sites if site.file]
    names = [loss.name for loss in report.updates] + [name for doubt in report.doubts for name in doubt.names]
    events = () if report.loop is None else (event for _, event in report.loop.sequence(1))
    never = [event for event in events if event.kind is Kind.NEVER_FINITE]
    names += [name for event in never for name in event.name.split()[1:]]
    settled = report.outcomes.get("settled")
    names += [name for name, off in settled.state.items() if off == inf] if settled is not None else []
    named = {part for name in names for part in name.partition("[")[0].split(".")}
    written = {site.location for site in sites if site.op.endswith("_") and site.dtype in HALVES}
    files = {site.file for site in sites}.union(
        (loss.file for loss in report.updates), (doubt.file for doubt in report.doubts)
    )
    found = made_in(files, frozenset(named)) if named or written else ()
    kept = [one for one in found if one.name in named or written & {*one.changed}]
    stored = any(site.phase is Phase.STATE and site.dtype in HALVES for site in report.low.sites)
    return (*kept, *(_cast_of_module(files) if named or stored else ()), *_scale_by_hand(report))


def made_in(files: Iterable[str], named: Collection[str] = ()) -> tuple[Maker, ...]:
    """Return what is made in half precision at one line only, in these files of the script.

    What is `named` is known to be in half precision: it may be made like other tensors.
    """
    made: dict[str, set[tuple[str, int]]] = defaultdict(set)
    cast: dict[str, set[tuple[str, int]]] = defaultdict(set)  # again, of what there was
    changed: dict[str, set[str]] = defaultdict(set)
    for file in sorted(set(files) - {""}):
        nodes = [*_nodes(file)]
        held = {name for node in nodes for name in _held(node)}
        for node in nodes:
            for name, value in _made(node):
                again = _writes_again(node, name) and not _calls(value, _BEGIN)
                # A variable of a function may be called like what a module holds: that is not cast again.
                recast = again and _is_cast(value) and not (name in held and _is_variable(node, name))
                if not _is_half(value) and not (name in named and (_calls(value, _LIKE) or recast)):
                    continue
                if recast:
                    cast[name].add((file, value.lineno))
                elif not again:
                    made[name].add((file, value.lineno))
            for name in filter(None, map(_name, _targets(node))):
                changed[name].add(location(file, getattr(node, "lineno", 0)))
    found = []
    for name in sorted({*made, *cast}):
        places, casts = made[name], tuple(location(*place) for place in sorted(cast[name]))
        if len(places) == 1 or (name in named and not places):
            found.append(Maker(name, *min(places or cast[name]), tuple(sorted(changed[name])), casts))
    return tuple(found)


def _held(node: ast.AST) -> Iterator[str]:
    """Yield what a module or another object holds that is not made of a variable of the same name."""
    for name, value in _made(node):
        attribute = any(isinstance(one, ast.Attribute) and one.attr == name for one in _parts(node))
        variables = {one.id for one in ast.walk(value) if isinstance(one, ast.Name)}
        if name not in variables and (attribute or _registers(node) is not None):
            yield name


def _is_variable(node: ast.AST, name: str) -> bool:
    """Tell whether a statement gives a variable a value, and no part of an object."""
    return any(isinstance(one, ast.Name) and one.id == name for one in _parts(node))


def _parts(node: ast.AST) -> list[ast.expr]:
    """Return what a statement gives values to, one by one."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    parts = [part for one in targets for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
    return [one for one in parts if one is not None]


def _writes_again(node: ast.AST, name: str) -> bool:
    """Tell whether a statement gives a part of a thing another value, or makes one of what it was."""
    if not isinstance(node, ast.Assign):
        return False
    part = any(isinstance(one, ast.Subscript) and _name(one) == name for one in node.targets)
    return part or any(isinstance(one, ast.expr) and _name(one) == name for one in ast.walk(node.value))


def _cast_of_module(files: Iterable[str]) -> Iterator[Maker]:
    """Yield the one line that casts a module to half precision."""
    found = [(file, line) for file in sorted(set(files) - {""}) for line in module_casts([*_nodes(file)])]
    if len(found) == 1:
        yield Maker(CASTS_MODULE, *found[0])


def _scale_by_hand(report: Report) -> Iterator[Maker]:
    """Yield the one line that makes the loss scale a script multiplies by itself, and the one that lowers it."""
    events = () if report.loop is None else report.loop.sequence(1)
    places = {(e.file, e.line) for _, e in events if e.kind is Kind.BACKWARD and e.by_hand and e.line}
    if len(places) != 1:
        return
    file, line = places.pop()
    nodes = list(_nodes(file))
    factors = {name for node in nodes if getattr(node, "lineno", 0) == line for name in _factors(node)}
    statements = [node for node in nodes if isinstance(node, ast.stmt)]
    written = [node for node in statements if factors & set(map(_name, _assigned(node)))]
    falls = [node for node in written if _divides(node) and factors & set(map(_name, _read(node)))]
    scales = factors & {_name(target) for node in falls for target in _assigned(node)}
    made = [node for node in written if scales & set(map(_name, _assigned(node)))]
    begins = {node.lineno for node in made if not _reads_what_it_writes(node, scales)}
    makes = set(begins)
    for kind in nodes:  # what a class makes is made where the class is called
        if isinstance(kind, ast.ClassDef) and begins <= _lines_that_construct(kind):
            calls = [one for one in nodes if isinstance(one, ast.Call) and _name(one.func) == kind.name]
            begins = {one.lineno for one in calls} if begins else set()
    falling = {node.lineno for node in falls}
    for name, lines in ((BEGINS_SCALE, begins), (MAKES_SCALE, makes), (LOWERS_SCALE, falling)):
        if len(lines) == 1:
            yield Maker(name, file, lines.pop())


def _factors(node: ast.AST) -> Iterator[str]:
    """Yield the names of what a product multiplies."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from filter(None, (_name(node.left), _name(node.right)))


def _assigned(node: ast.stmt) -> Iterator[ast.expr]:
    """Yield what a statement gives a value to."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else [target]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target


def _read(node: ast.stmt) -> Iterator[ast.expr]:
    """Yield what a statement computes with."""
    if isinstance(node, ast.AugAssign):
        yield node.target
    value = getattr(node, "value", None)
    yield from (one for one in ast.walk(value) if isinstance(one, ast.expr)) if value is not None else ()


def _lines_that_construct(kind: ast.ClassDef) -> set[int]:
    """Return the lines of a class that run where it is called: those of other methods run later."""
    parts = [one for one in kind.body if getattr(one, "name", "__init__") in {"__init__", "__post_init__"}]
    return {line for one in parts for line in range(one.lineno, (one.end_lineno or 0) + 1)}


def _reads_what_it_writes(node: ast.stmt, names: Collection[str]) -> bool:
    """Tell whether a statement gives such a name a value made from its own; an argument is another thing."""
    written = {ast.unparse(one) for one in _assigned(node) if _name(one) in names}
    return not written.isdisjoint(map(ast.unparse, _read(node)))


def _divides(node: ast.stmt) -> bool:
    """Tell whether a statement divides, or multiplies by a number below one."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        return True
    for one in [node, *_read(node)]:
        op = getattr(one, "op", None)
        if isinstance(one, ast.BinOp) and isinstance(op, ast.Div):
            return True
        by = getattr(one, "value", None) if isinstance(one, ast.AugAssign) else getattr(one, "right", None)
        if isinstance(op, ast.Mult) and isinstance(by, ast.Constant) and isinstance(by.value, float):
            return by.value < 1
    return False


def gradient_given(files: Iterable[str]) -> tuple[str, int]:
    """Return the one line at which files give a parameter its gradient; ("", 0) where there is none, or several."""
    found = [
        (file, node.lineno)
        for file in sorted(set(files) - {""})
        for node in _nodes(file)
        if isinstance(node, ast.Assign) and any(getattr(one, "attr", "") == "grad" for one in node.targets)
        if not isinstance(node.value, ast.Constant)
    ]
    return found[0] if len(found) == 1 else ("", 0)


def _nodes(file: str) -> Iterator[ast.AST]:
    """Yield what a file holds, nothing where it cannot be read or is a library's."""
    path = Path(file)
    try:
        if not in_library(str(path.absolute())):
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return


def _made(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names of what a statement or a call makes, and what it is made of."""
    if isinstance(node, _ASSIGNMENTS) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from [(name, value) for one, value in _pairs(target, node.value) if (name := _name(one))]
    elif (call := _registers(node)) is not None:
        yield call
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what is assigned, and what to: each by itself where several are."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield target, value


def _registers(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Return what a call gives a name to, as `register_buffer("mean", ...)` does."""
    match node:
        case ast.Call(func=ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), value, *_]):
            return (name, value) if called in _REGISTER else None
    return None


def _name(node: ast.expr) -> str:
    """Return what a thing is called: the attribute, the variable, the word in a subscript."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Subscript(value=inner) | ast.Starred(value=inner):
            return _name(inner)
    return ""


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement or a call writes into."""
    match node:
        case ast.AugAssign(target=target):
            yield target
        case ast.Assign(targets=targets):
            yield from [one for one in targets if isinstance(one, ast.Subscript)]
        case ast.Call(func=ast.Attribute(attr=name, value=owner)) if name.endswith("_"):
            while isinstance(owner, ast.Call) and isinstance(
                owner.func, ast.Attribute
            ):  # as of x.mul_().add_()
                owner = owner.func.value
            yield owner


def _calls(value: ast.expr, names: frozenset[str]) -> bool:
    """Tell whether an expression calls one of these."""
    return any(_name(node.func) in names for node in ast.walk(value) if isinstance(node, ast.Call))


def _is_cast(value: ast.expr) -> bool:
    """Tell whether an expression gives what it computes in another precision, at last; a device is none."""
    if not isinstance(value, ast.Call) or _name(value.func) not in CASTS:
        return False
    words = [_name(value.func), *map(_name, [*value.args, *(one.value for one in value.keywords)])]
    return any(word in HALF_WORDS or "dtype" in word for word in words)


def _is_half(value: ast.expr) -> bool:
    """Tell whether an expression names half precision, or a dtype that is given elsewhere."""
    for node in ast.walk(value):
        word = {ast.Attribute: "attr", ast.Name: "id"}.get(type(node), "")
        if word and getattr(node, word) in HALF_WORDS:
            return True
        if isinstance(node, ast.keyword) and node.arg == "dtype":
            return "32" not in ast.unparse(node.value) and "64" not in ast.unparse(node.value)
    return False
