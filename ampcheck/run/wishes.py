"""Which precision a script asks for by the words that frameworks know: read, since frameworks switch it off alone."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_NAMES = {"precision", "mixed_precision", "fp16", "bf16", "amp", "use_amp", "half"}
_VALUES = {
    "16": "fp16",
    "16-mixed": "fp16",
    "16-true": "fp16",
    "fp16": "fp16",
    "float16": "fp16",
    "mixed_float16": "fp16",
    "bf16": "bf16",
    "bf16-mixed": "bf16",
    "bf16-true": "bf16",
    "bfloat16": "bf16",
    "mixed_bfloat16": "bf16",
}
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


def wishes(source: str, file: str, arguments: Sequence[str] = ()) -> Wish | None:
    """Return what the source of a script and its command line ask for; None where nothing, or several things.

    >>> wishes('Trainer(precision="16-mixed")', "a.py")
    Wish(precisions=('fp16',), place="precision='16-mixed' at a.py:1")
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    found = [*_typed(arguments), *_written(tree, file)]
    different = {wish.precisions for wish in found}
    return found[0] if len(different) == 1 else None


def wishes_of(path: Path, arguments: Sequence[str]) -> Wish | None:
    """Return what a script file asks for; None where it cannot be read."""
    try:
        return wishes(path.read_text(encoding="utf-8"), path.name, arguments)
    except (OSError, UnicodeDecodeError):
        return None


def _written(tree: ast.AST, file: str) -> Iterator[Wish]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            value = keyword.value
            if keyword.arg in _NAMES and isinstance(value, ast.Constant):
                precisions = _meant(keyword.arg, value.value)
                if precisions:
                    yield Wish(precisions, f"{keyword.arg}={value.value!r} at {file}:{value.lineno}")


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
