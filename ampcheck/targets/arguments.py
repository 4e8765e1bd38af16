"""Which arguments a script takes, read from its text, and whose an option on a command line is."""

import ast
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ampcheck.targets.reading import Source, sources_of
from ampcheck.targets.userfile import shown

#: Libraries that read a command line in a way that the text of a script does not show.
OTHER_PARSERS = frozenset(
    "click typer fire tyro hydra absl jsonargparse docopt simple_parsing omegaconf "
    "HfArgumentParser LightningCLI ConfigArgumentParser".split()
)
#: Folders that hold data in most projects, for arguments that ask for some.
DATA_FOLDERS = ("data", "dataset", "datasets", "input")
#: Parts of the names of arguments that ask for a configuration, what its files end in, and where they lie.
CONFIG_WORDS = ("config", "cfg", "conf", "yaml", "recipe")
CONFIG_ENDINGS = (".yaml", ".yml", ".json", ".toml")
CONFIG_FOLDERS = (".", "configs", "config", "conf", "cfgs")
#: Parts of the names of arguments that ask for a place on the disk.
PLACE_WORDS = ("data", "root", "dir", "folder", "path", "file", "csv", "input", "src", "images")


class Reads(Enum):
    """How a script reads its command line."""

    NOTHING = "nothing"
    DECLARED = "declared"  #: by argparse alone, in its own text
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a script."""

    flags: tuple[str, ...]  #: --lr and -l, or the name of a positional one
    required: bool
    choices: tuple[str, ...] = ()
    kind: str = ""  #: name of its type
    name: str = ""  #: under which the parsed value stands
    default: ast.expr | None = None

    @property
    def positional(self) -> bool:
        """Tell whether it is given without a name."""
        return not self.flags[0].startswith("-")

    def example(self, folder: Path) -> tuple[list[str], bool]:
        """Return words that give it, as far as its declaration says what they may be, and whether they may do."""
        name = max(self.flags, key=len)
        value = self.choices[0] if self.choices else _EXAMPLES.get(self.kind, "") or _place(name, folder)
        shown = value or _plain(name).upper()
        return [shown] if self.positional else [name, shown], bool(value)


_EXAMPLES = {"int": "1", "float": "0.1"}


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a script."""

    reads: Reads
    known: tuple[Argument, ...] = ()
    #: names and texts in a script that reads its command line in other ways
    words: frozenset[str] = frozenset()

    def declares(self, word: str) -> bool:
        """Tell whether the script itself has an option of that name; where nobody can tell, whether it may have."""
        name = word.partition("=")[0]
        if any(name in argument.flags for argument in self.known):
            return True
        return self.reads is Reads.UNKNOWN and not {name, _plain(name)}.isdisjoint(self.words)

    def missing(self, words: Sequence[str]) -> list[Argument]:
        """Return the arguments that the script asks for and that the words do not give."""
        if "-h" in words or "--help" in words or self.reads is not Reads.DECLARED:
            return []
        given = {word.partition("=")[0] for word in words}
        named = [a for a in self.known if a.required and not a.positional and given.isdisjoint(a.flags)]
        places = [a for a in self.known if a.required and a.positional]
        return [*places[self._free(words) :], *named]

    def _free(self, words: Sequence[str]) -> int:
        """Return how many words stand for themselves: an option is taken to have one value at most."""
        free, expects = 0, False
        for word in words:
            if word.startswith("-") and not word.lstrip("-.").isdigit():
                expects = "=" not in word
            elif not expects:
                free += 1
            else:
                expects = False
        return free


def arguments_of(path: Path) -> Arguments:
    """Return the arguments that a script declares, in its file or in those it imports from beside it."""
    sources = list(sources_of(path))
    known = tuple(found for source in sources for found in declared(source))
    if any(map(_reads_otherwise, sources)):
        words = frozenset(word for source in sources for word in _words(source))
        return Arguments(Reads.UNKNOWN, known, words)
    declares = known or any({"argparse", "ArgumentParser"} & _imports(source) for source in sources)
    return Arguments(Reads.DECLARED if declares else Reads.NOTHING, known)


def divided(
    words: Sequence[str], arguments: Arguments, takes: Callable[[str, str], int]
) -> tuple[list[str], list[str]]:
    """Divide the words after a script into those that are ampcheck's and those that are the script's.

    `takes(option, next)` returns how many words an option of ampcheck's takes, 0 where it has no such option. What
    the script declares is the script's, and so is all that follows `--`.
    """
    ours: list[str] = []
    theirs: list[str] = []
    rest = list(words)
    while rest:
        if rest[0] == "--":
            return ours, [*theirs, *rest[1:]]
        follows = rest[1] if len(rest) > 1 else ""
        own = 0 if arguments.declares(rest[0]) else takes(rest[0], follows)
        (ours if own else theirs).extend(rest[: own or 1])
        del rest[: own or 1]
    return ours, theirs


def _words(source: Source) -> Iterator[str]:
    """Yield the names and texts of a file."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.arg):
            yield node.arg


def declared(source: Source) -> Iterator[Argument]:
    """Yield the arguments that a file declares with argparse."""
    for call in source.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
            continue
        flags = tuple(a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
        if flags:
            yield _argument(flags, {keyword.arg: keyword.value for keyword in call.keywords})


def _argument(flags: tuple[str, ...], said: dict[str | None, ast.expr]) -> Argument:
    positional = not flags[0].startswith("-")
    nargs = said.get("nargs")
    optional = "default" in said or (isinstance(nargs, ast.Constant) and nargs.value in {"?", "*"})
    required = said.get("required")
    demanded = isinstance(required, ast.Constant) and bool(required.value)
    choices = said.get("choices")
    listed = choices.elts if isinstance(choices, (ast.List, ast.Tuple, ast.Set)) else []
    kind, dest = said.get("type"), said.get("dest")
    return Argument(
        flags,
        required=demanded or (positional and not optional),
        choices=tuple(str(one.value) for one in listed if isinstance(one, ast.Constant)),
        kind=kind.id if isinstance(kind, ast.Name) else "",
        name=str(dest.value) if isinstance(dest, ast.Constant) else _plain(max(flags, key=len)),
        default=said.get("default"),
    )


def _imports(source: Source) -> set[str]:
    """Return the packages that a file imports, and the names that it takes from them."""
    taken = (node for node in ast.walk(source.tree) if isinstance(node, ast.ImportFrom))
    return {*source.packages, *(alias.name for node in taken for alias in node.names)}


def _reads_otherwise(source: Source) -> bool:
    names = _imports(source)
    argv = any(isinstance(node, ast.Attribute) and node.attr == "argv" for node in ast.walk(source.tree))
    known_only = any(
        isinstance(call.func, ast.Attribute) and call.func.attr == "parse_known_args" for call in source.calls
    )
    return bool(names & OTHER_PARSERS) or argv or known_only


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _place(name: str, folder: Path) -> str:
    """Return data or a configuration that lies here or beside the script, for an argument that asks for some; or ''."""
    plain = _plain(name).lower()
    tops = [Path(), *([] if folder == Path.cwd() else [folder])]
    if any(word in plain for word in CONFIG_WORDS):
        files = (path for top in tops for inner in CONFIG_FOLDERS for path in sorted((top / inner).glob("*")))
        config = next((path for path in files if path.suffix in CONFIG_ENDINGS), None)
        if config is not None:
            return shown(config)
    if any(word in plain for word in PLACE_WORDS):
        return next((inner for inner in DATA_FOLDERS if os.path.isdir(inner)), "")  # noqa: PTH112
    return ""
