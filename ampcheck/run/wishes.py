"""Which precision a script asks for by the words that frameworks know: read, since frameworks switch it off alone."""

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from ampcheck.run.surely import Function, functions, surely_called

_NAMES = {"precision", "mixed_precision", "fp16", "bf16", "amp", "use_amp", "half"}
_VALUES = {
    **dict.fromkeys("16 16-mixed 16-true fp16 float16 mixed_float16".split(), "fp16"),
    **dict.fromkeys("bf16 bf16-mixed bf16-true bfloat16 mixed_bfloat16".split(), "bf16"),
}
_HALVES = {"half", "float16", "bfloat16"}
_EITHER = ("fp16", "bf16")


@dataclass(frozen=True, slots=True)
class Wish:
    """A precision that a script asks for."""

    precisions: tuple[str, ...]  #: those that would be what is asked for
    place: str  #: the words, and where they stand

    @property
    def words(self) -> str:
        """Return it in a word or two."""
        return self.precisions[0] if len(self.precisions) == 1 else "mixed precision"


@dataclass(frozen=True, slots=True)
class Wishes:
    """All that a script and its command line ask for, whether or not the lines that do so run."""

    sure: tuple[Wish, ...] = ()  #: which no script that ran to its end has left out
    #: By the function whose lines they are among: asked for wherever that function runs.
    inside: tuple[tuple[Function, Wish], ...] = ()
    others: tuple[Wish, ...] = ()  #: of which nobody can say
    path: str = ""  #: of the script
    half: bool = False  #: it names half precision where it is not autocast's

    def one(self, ran: Collection[Function] = ()) -> Wish | None:
        """Return what is asked for if these functions ran; None where nothing is sure, or there are several things."""
        found = [*self.sure, *(wish for function, wish in self.inside if function in ran)]
        every = chain(found, (wish for _, wish in self.inside), self.others)
        return found[0] if found and len({wish.precisions for wish in every}) == 1 else None


#: Of a script that asks for nothing.
NO_WISHES = Wishes()


def wishes(source: str, file: str, arguments: Sequence[str] = ()) -> Wishes:
    """Return what the source of a script and its command line ask for.

    >>> wishes('Trainer(precision="16-mixed")', "a.py").one()
    Wish(precisions=('fp16',), place="precision='16-mixed' at a.py:1")
    >>> wishes('def never(): Trainer(precision="16-mixed")', "a.py").one()
    """
    try:
        return _wishes_in(ast.parse(source), file, arguments)
    # Python may read what is nested too deep for us.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return NO_WISHES


def _wishes_in(tree: ast.Module, file: str, arguments: Sequence[str]) -> Wishes:
    sure = surely_called(tree)
    inside = {name: calls for name, calls in functions(tree).items() if name not in sure}
    certain = [call for calls in sure.values() for call in calls]
    placed = {*map(id, certain), *(id(call) for calls in inside.values() for call in calls)}
    return Wishes(
        (*_typed(arguments), *_written(certain, file)),
        tuple((name, wish) for name, calls in inside.items() for wish in _written(calls, file)),
        tuple(_written((node for node in ast.walk(tree) if id(node) not in placed), file)),
        half=_names_half(tree),
    )


def wishes_of(path: Path, arguments: Sequence[str]) -> Wishes:
    """Return what a script file asks for; nothing where it cannot be read."""
    try:
        found = wishes(path.read_text(encoding="utf-8"), path.name, arguments)
        return replace(found, path=str(path.absolute()))
    except (OSError, UnicodeDecodeError):
        return NO_WISHES


def _written(nodes: Iterable[ast.AST], file: str) -> Iterator[Wish]:
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            value = keyword.value
            if keyword.arg in _NAMES and isinstance(value, ast.Constant):
                precisions = _meant(keyword.arg, value.value)
                if precisions:
                    yield Wish(precisions, f"{keyword.arg}={value.value!r} at {file}:{value.lineno}")


def _names_half(node: ast.AST) -> bool:
    """Tell whether code names half precision other than for a region of autocast."""
    word = {ast.Attribute: "attr", ast.Name: "id"}.get(type(node), "")
    if word and getattr(node, word) in _HALVES:
        return True
    if isinstance(node, ast.Call) and "autocast" in ast.unparse(node.func):
        return False
    return any(map(_names_half, ast.iter_child_nodes(node)))


def _typed(arguments: Sequence[str]) -> Iterator[Wish]:
    for at, word in enumerate(arguments):
        name, sign, value = word.lstrip("-").replace("-", "_").partition("=")
        if name not in _NAMES or not (sign or word.startswith("-")):
            continue
        after = arguments[at + 1] if at + 1 < len(arguments) else ""
        given: object = value if sign else (after if after and not after.startswith("-") else True)
        precisions = _meant(name, given)
        if precisions:
            yield Wish(
                precisions, f"{word}{'' if sign or given is True else ' ' + after} on the command line"
            )


def _meant(name: str, value: object) -> tuple[str, ...]:
    """Return the precisions that a setting stands for, () where it asks for none."""
    if name in {"precision", "mixed_precision"}:
        found = _VALUES.get(str(value).lower())
        return (found,) if found and value is not True else ()
    if value is not True and str(value).lower() not in {"true", "1", "yes"}:
        return ()
    return {"fp16": ("fp16",), "bf16": ("bf16",), "half": ("fp16",)}.get(name, _EITHER)
