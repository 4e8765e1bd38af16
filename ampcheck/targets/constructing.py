"""Python that builds a class of the user's: arguments from call sites, defaults, config classes and their names."""

import ast
import builtins
import dataclasses
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ampcheck.targets.arguments import declared
from ampcheck.targets.reading import Source, read_source
from ampcheck.targets.scope import parameters_of

#: Files of a project that are looked through for a line that builds a class.
MOST_FILES = 60
#: Functions that may be called while an argument is worked out.
PLAIN_CALLS = frozenset(
    {"len", "int", "float", "max", "min", "tuple", "list", "range", "dict", "str", "bool", "sum"}
)
#: What an argument that nobody gives is, by its name; the first pattern that fits.
BY_NAME = (
    (r"(num|n)_?(classes|labels|outputs|tags)$|^classes$|^out(put)?_(dim|size)$|^ncls$", "10"),
    (r"(obs|img|image|input|state)\w*_shape$", "(3, 32, 32)"),
    (r"^(hidden|model|base|mid|inner|embed(ding)?|feature|feat|d)_?(chan(nel)?s|chans|ch)$", "64"),
    (r"(^|_)(in_)?(chan(nel)?s|chans|nc|in_ch|input_dim)$|^in_c$", "3"),
    (r"vocab|n_?tokens?$|n_chars|num_embeddings", "1000"),
    (r"heads?$", "4"),
    (r"layers?$|depth|n_blocks|num_blocks|n_layer", "2"),
    (r"drop(out)?|^p$|rate$|eps$|lr$", "0.1"),
    (r"(img|image|sample|input)_size|resolution", "32"),
    (r"patch", "8"),
    (r"kernel", "3"),
    (r"stride|dilation|groups", "1"),
    (r"block_size|max_len|seq_len|context_l|max_seq|window|lookback", "64"),
    (r"act(ion)?s?_?(dim|size|space)?$|n_actions|num_actions|horizon", "4"),
    (r"obs|state|n_features|in_features|num_features|in_dim|n?_?inp(ut)?s?$", "16"),
    (
        r"dim|hidden|hid$|width|size|embd|embed|emb$|channels|features|latent|nz|ngf|ndf|units|^d$|^(n|num)_",
        "64",
    ),
)


#: Defaults of a command line's arguments that can be said without running anything.
_WRITTEN_OUT = (ast.Constant, ast.List, ast.Tuple, ast.UnaryOp)


@dataclass(frozen=True, slots=True)
class Construction:
    """Python that builds a class, and where it was taken from."""

    text: str
    origin: str = ""  #: the file and line that builds it so; '' where it was worked out


def constructions(name: str, kind: Any, source: Source, names: dict[str, Any]) -> Iterator[Construction]:
    """Yield Python that builds a class, the most certain first; `names` are those of its file."""
    wanted = required(kind)
    if not wanted:
        yield Construction(f"{name}()")
        return
    for other in _project(source):
        yield from _sites(name, other, source)
    filled = _filled(wanted, source, names)
    if filled is not None:
        yield Construction(f"{name}({filled})")


def required(kind: Any) -> list[inspect.Parameter]:
    """Return the parameters that a class has to be given."""
    parameters = (parameters_of(kind) or {}).values()
    return [p for p in parameters if p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]


def _project(source: Source) -> Iterator[Source]:
    """Yield the file itself, and those beside it and above it."""
    yield source
    folder = source.path.parent
    near = [*sorted(folder.glob("*.py")), *sorted(folder.parent.glob("*.py")), *sorted(folder.glob("*/*.py"))]
    for path in [path for path in near if path != source.path][:MOST_FILES]:
        other = read_source(path)
        if other is not None:
            yield other


def _sites(name: str, other: Source, source: Source) -> Iterator[Construction]:
    """Yield what builds the class in a file, where it can be said without running that file."""
    if name not in other.text:
        return
    own = other.path == source.path
    if not own and name not in other.imported and f".{name}" not in other.text:
        return
    for function, call in _calls_of(name, other):
        parts = _Arguments(other, source, function, call.lineno).of(call)
        if parts is not None:
            where = f"{other.path.name}:{call.lineno}" if not own else f"line {call.lineno}"
            yield Construction(f"{name}({parts})", where)


def _calls_of(name: str, source: Source) -> Iterator[tuple[ast.AST | None, ast.Call]]:
    """Yield the calls of a class with the function that each lies in."""

    def within(node: ast.AST, function: ast.AST | None) -> Iterator[tuple[ast.AST | None, ast.Call]]:
        for child in ast.iter_child_nodes(node):
            inner = child if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
            if isinstance(child, ast.Call) and _name_of(child.func) == name:
                yield inner, child
            yield from within(child, inner)

    return within(source.tree, None)


def _name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


class _Arguments:
    """The arguments of one call, written so that they mean the same beside the definition of the class."""

    def __init__(self, other: Source, source: Source, function: ast.AST | None, line: int) -> None:
        self._other, self._source = other, source
        self._own = other.path == source.path
        self._locals = _assigned(function, line) if function is not None else {}
        self._parameters = _parameters(function)
        self._tops = _assigned(other.tree, 10**9, deep=False)
        self._depth = 0

    def of(self, call: ast.Call) -> str | None:
        """Return the arguments as they would be written, None where one of them cannot be said."""
        if any(isinstance(arg, ast.Starred) for arg in call.args):
            return None
        places = [self._said(arg) for arg in call.args]
        named: list[tuple[str | None, str | None]] = []
        for keyword in call.keywords:
            given = [keyword] if keyword.arg is not None else self._spread(keyword.value)
            named += (
                [(one.arg, self._said(one.value)) for one in given] if given is not None else [("", None)]
            )
        if None in places or any(value is None for _, value in named):
            return None
        return ", ".join([*(text for text in places if text), *(f"{key}={value}" for key, value in named)])

    def _spread(self, node: ast.expr) -> list[ast.keyword] | None:
        """Return what `**` spreads, where that is written out: `dict(a=1)`, `{"a": 1}`, or a name of one."""
        if isinstance(node, ast.Name):
            value = self._locals.get(node.id) or self._tops.get(node.id)
            return None if value is None else self._spread(value)
        if isinstance(node, ast.Call) and _name_of(node.func) == "dict" and not node.args:
            return node.keywords if all(keyword.arg is not None for keyword in node.keywords) else None
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found = [
                ast.keyword(str(key.value), value) for key, value in pairs if isinstance(key, ast.Constant)
            ]
            return found if len(found) == len(node.keys) else None
        return None

    def _said(self, node: ast.expr) -> str | None:
        found = self._resolved(node)
        return None if found is None else ast.unparse(found)

    def _resolved(self, node: ast.expr) -> ast.expr | None:
        self._depth += 1
        try:
            return self._look(node) if self._depth < 20 else None  # noqa: PLR2004  # names that lead to themselves
        finally:
            self._depth -= 1

    def _look(self, node: ast.expr) -> ast.expr | None:
        if isinstance(node, ast.Constant):
            return node
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, (ast.Tuple, ast.List, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Dict)):
            return self._parts(node)
        return None

    def _parts(self, node: ast.expr) -> ast.expr | None:
        made = ast.parse(ast.unparse(node), mode="eval").body
        for field, value in ast.iter_fields(made):
            if isinstance(value, ast.expr) and not isinstance(value, ast.Slice):
                new = self._resolved(value)
                if new is None:
                    return None
                setattr(made, field, new)
            elif isinstance(value, list):
                parts = [self._resolved(part) for part in value if isinstance(part, ast.expr)]
                if any(part is None for part in parts):
                    return None
                setattr(made, field, parts)
        return made

    def _name(self, node: ast.Name) -> ast.expr | None:
        if node.id in self._locals:
            return self._resolved(self._locals[node.id])
        if node.id in self._parameters:
            return self._parameter(node.id)
        if self._own and (node.id in self._tops or node.id in self._source.classes):
            return node if not _parses(self._tops.get(node.id)) else None
        if node.id in self._tops:
            return self._resolved(self._tops[node.id])
        return node if node.id in self._source.classes or node.id in {"True", "False", "None"} else None

    def _parameter(self, name: str) -> ast.expr | None:
        default, annotation = self._parameters[name]
        if default is not None:
            return self._resolved(default)
        made = _name_of(annotation) if annotation is not None else ""
        if made in self._source.classes:
            return ast.Call(ast.Name(made), [], [])
        return None

    def _attribute(self, node: ast.Attribute) -> ast.expr | None:
        if isinstance(node.value, ast.Name) and self._is_parsed(node.value.id):
            found = (one.default for one in declared(self._other) if one.name == node.attr)
            return next((value for value in found if isinstance(value, _WRITTEN_OUT)), None)
        base = self._resolved(node.value)
        return None if base is None else ast.Attribute(base, node.attr)

    def _is_parsed(self, name: str) -> bool:
        """Tell whether a name stands for the arguments of a command line."""
        value = self._locals.get(name) or self._tops.get(name)
        if value is not None:
            return _parses(value)
        return name in self._parameters and name in {"args", "opt", "opts", "options", "hparams"}

    def _call(self, node: ast.Call) -> ast.expr | None:
        name = _name_of(node.func)
        if name not in PLAIN_CALLS and name not in self._source.classes:
            return None
        parts = self.of(node)
        return None if parts is None else ast.parse(f"{name}({parts})", mode="eval").body


def _parses(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and _name_of(value.func) in {"parse_args", "parse_known_args"}


def _assigned(node: ast.AST, line: int, *, deep: bool = True) -> dict[str, ast.expr]:
    """Return what names are assigned before a line, the last value of each."""
    found: dict[str, ast.expr] = {}
    parts = ast.walk(node) if deep else iter(getattr(node, "body", []))
    for part in sorted(
        (p for p in parts if isinstance(p, (ast.Assign, ast.AnnAssign))), key=lambda p: p.lineno
    ):
        targets = part.targets if isinstance(part, ast.Assign) else [part.target]
        if part.lineno >= line or part.value is None:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                found[target.id] = part.value
            elif isinstance(target, ast.Tuple) and isinstance(part.value, ast.Tuple):
                pairs = zip(target.elts, part.value.elts, strict=False)
                found |= {name.id: value for name, value in pairs if isinstance(name, ast.Name)}
    return found


def _parameters(function: ast.AST | None) -> dict[str, tuple[ast.expr | None, ast.expr | None]]:
    """Return the parameters of a function: default and annotation."""
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return {}
    given = function.args
    named = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(named) - len(given.defaults)), *given.defaults]
    pairs = [*zip(named, defaults, strict=True), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return {arg.arg: (default, arg.annotation) for arg, default in pairs}


def _filled(
    wanted: list[inspect.Parameter], source: Source, names: dict[str, Any], deep: int = 0
) -> str | None:
    """Return arguments that were worked out from annotations and names."""
    parts = []
    for parameter in wanted:
        text = _guess(parameter, source, names, deep)
        if text is None:
            return None
        parts.append(f"{parameter.name}={text}")
    return ", ".join(parts)


def _guess(parameter: inspect.Parameter, source: Source, names: dict[str, Any], deep: int) -> str | None:
    kind = parameter.annotation
    if isinstance(kind, str):
        kind = names.get(kind) or getattr(builtins, kind, kind)
    if isinstance(kind, type) and kind.__name__ in names and deep < 3:  # noqa: PLR2004  # classes in classes
        return _made(kind.__name__, kind, source, names, deep)
    other = _class_for(parameter.name, source, names)
    if other and deep < 3:  # noqa: PLR2004
        return _made(other, names[other], source, names, deep)
    if kind is bool:
        return "False"
    found = next((text for pattern, text in BY_NAME if re.search(pattern, parameter.name.lower())), None)
    if kind is float and (found is None or "." not in found):
        return "0.1"
    return found or ("64" if kind is int else None)


def _made(name: str, kind: Any, source: Source, names: dict[str, Any], deep: int) -> str | None:
    """Return what builds another class that an argument asks for: a configuration, or a part of the model."""
    for other in _project(source):
        site = next(_sites(name, other, source), None)
        if site is not None and (site.text != f"{name}()" or not required(kind)):
            return site.text
    inner = _filled(required(kind), source, names, deep + 1)
    return None if inner is None else f"{name}({inner})"


def _class_for(name: str, source: Source, names: dict[str, Any]) -> str:
    """Return the class of the file that an argument without annotation is one of: a config class, a part by name."""
    classes = [known for known in source.classes if isinstance(names.get(known), type)]
    if name.lower() in {"config", "cfg", "args", "hparams", "hp", "conf", "opt", "params"}:
        config = [known for known in classes if re.search(r"config|args|params|hp", known, re.IGNORECASE)]
        config += [known for known in classes if dataclasses.is_dataclass(names[known])]
        return next(iter(config), "")
    wanted = name.lower().replace("_", "")
    return next((known for known in classes if len(wanted) > 3 and wanted in known.lower()), "")  # noqa: PLR2004
