"""The command line: `ampcheck TARGET`, `ampcheck show FILE`, `ampcheck explain CODE`."""

import argparse
import codecs
import contextlib
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from ampcheck.cli import (
    audit_script,
    baseline,
    bench,
    check,
    completion,
    diff,
    doctor,
    explain,
    fix,
    init,
    merge,
    run,
    show,
)
from ampcheck.cli.output import complain, configure
from ampcheck.errors import AmpcheckError, ConfigError

_MODULES = (check, run, init, fix, bench, show, merge, baseline, diff, explain, doctor, completion)
COMMANDS = {module.__name__.rpartition(".")[2]: module for module in _MODULES}
COULD_NOT_RUN = 2
INTERRUPTED = 130

_USAGE = """\
ampcheck [check] TARGET [options]
       ampcheck run [options] SCRIPT [ARGUMENTS]
       ampcheck init FILE
       ampcheck fix FILE [--diff] [--branch NAME]
       ampcheck bench TARGET [options]
       ampcheck show REPORT.json
       ampcheck diff OLD.json NEW.json
       ampcheck merge REPORT.json ... -o FILE
       ampcheck baseline TARGET [-o FILE]
       ampcheck explain [CODE]
       ampcheck doctor
       ampcheck completion bash|zsh|fish"""
_EPILOG = """\
examples:
  ampcheck model.py                       audit the model, batch and loss that a file defines
  ampcheck torchvision:resnet18           audit an architecture by name, with random weights
  ampcheck model.py --precision bf16      ... in bfloat16
  ampcheck train.py --epochs 1            audit the first steps of a training script, as on a GPU
  ampcheck run train.py --epochs 1        watch the whole of it; its numbers and files stay its own
  ampcheck init model.py                  write batch() and loss() for a model, ready to change
  ampcheck model.py -o r.json ; ampcheck show r.json -o r.md -o r.sarif
  ampcheck baseline model.py -o b.json    accept what there is; from then on:
  ampcheck model.py --baseline b.json     ... whatever is better or worse than that makes the status 1
  ampcheck bench model.py                 time, memory and accuracy of every precision

exit status: 0 nothing at or above --fail-on, 1 findings, 2 could not run, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except KeyboardInterrupt:
        left = "what was written before is still there" if words[:1] == ["run"] else "nothing was written"
        with contextlib.suppress(Exception):
            print(f"\nampcheck: interrupted; {left}", file=sys.stderr)
        return INTERRUPTED


def _run(words: list[str]) -> int:
    if words and words[0] not in COMMANDS and words not in (["-h"], ["--help"], ["--version"]):
        words.insert(0, "check")
    parser = _parser()
    _refuse_misspelt(words, parser)
    script = audit_script.script_words(words, parser.commands["check"]) if words[:1] == ["check"] else None
    if words[:1] == ["run"]:
        words = audit_script.run_words(words, parser.commands["run"])
    options, unknown = parser.parse_known_args(script[0] if script else words)
    if unknown:
        parser.refuse(words[0], unknown)
    captured = options.command != "bench" or getattr(options, "captured", None) is not None
    if captured and getattr(options, "target", "") is None:
        _target_of_capture(options, parser)
    options.words, options.commands = words, parser.commands
    options.script_words = script and script[1]
    options.given = frozenset(_given(options, parser.commands))
    if options.command != "run":  # there it is the script that prints
        _print_anywhere()
    try:
        configure(options)
        status: int = COMMANDS[options.command].run(options)
    except AmpcheckError as error:
        if getattr(options, "traceback", False):
            traceback.print_exception(error)
        complain(error)
        return COULD_NOT_RUN
    except BrokenPipeError:
        # The reader of our output has gone, as in `ampcheck ... | head`.
        sys.stderr.close()
        return 0
    return status


def _refuse_misspelt(words: Sequence[str], parser: "_Parser") -> None:
    """Stop at a first word that looks like a command and names nothing: `ampcheck baselin model.py`."""
    from ampcheck.targets.spec import close

    word = words[1] if words[:1] == ["check"] and len(words) > 1 else ""
    plain = word.isalpha() and not Path(word).exists()
    if plain and (near := close(word, list(COMMANDS))):
        parser.error(f"no command or file {word!r}{near}")


def _target_of_capture(options: argparse.Namespace, parser: "_Parser") -> None:
    """Let a capture say what its target is, where none is given."""
    from ampcheck.targets.capture_header import target_of

    if options.captured is None:
        parser.commands[options.command].error("the following arguments are required: TARGET")
    try:
        options.target = target_of(options.captured)
    except AmpcheckError as error:
        complain(error)
        sys.exit(COULD_NOT_RUN)


def _given(options: argparse.Namespace, commands: Mapping[str, argparse.ArgumentParser]) -> Iterator[str]:
    """Yield the names of the options that were given another value than the default."""
    parser = commands.get(options.command)
    if parser is not None:
        yield from (name for name, value in vars(options).items() if value != parser.get_default(name))


def _print_anywhere() -> None:
    """Let a character that the screen's encoding lacks become its likeness in ASCII, and not an error."""
    codecs.register_error("ampcheck_ascii", _likeness)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="ampcheck_ascii")


#: What stands for the characters of a report on a screen that has only ASCII, one for one.
_LIKENESS = dict(zip("·…→×–┆└─▁▂▃▄▅▆▇█▲≥≤✓✕²", ".~>x-|`-_.:-=+*#^><vx2", strict=True))


def _likeness(error: UnicodeError) -> tuple[str, int]:
    """Return what is written for characters that cannot be encoded, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    shown = error.object[error.start : error.end]
    return "".join(_LIKENESS.get(letter, "?") for letter in shown), error.end


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in a line, and where the help is: all the options would bury it."""

    commands: Mapping[str, argparse.ArgumentParser]

    def error(self, message: str) -> NoReturn:
        """Stop with a message."""
        if self.usage:
            self.print_usage(sys.stderr)
        complain(ConfigError(message, hint=f"{self.prog} --help"))
        self.exit(COULD_NOT_RUN)

    def refuse(self, command: str, words: Sequence[str]) -> NoReturn:
        """Stop at words that are no options of a command, with those that look like them."""
        from ampcheck.targets.spec import close

        sub = self.commands[command]
        known = sorted(set(re.findall(r"--[a-z][a-z-]+", sub.format_help())))
        sub.error(f"unrecognized arguments: {' '.join(words)}{close(words[0].partition('=')[0], known)}")


def _parser() -> _Parser:
    parser = _Parser(
        prog="ampcheck",
        usage=_USAGE,
        description="Find out what mixed precision does to a PyTorch training step: which layer, operation and line.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    # Without a name of their own, the usage of each command would begin with that of all.
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", prog="ampcheck")
    for name, command in COMMANDS.items():
        summary = (command.__doc__ or "").splitlines()[0]
        sub = commands.add_parser(
            name,
            help=summary,
            description=command.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
    parser.commands = commands.choices
    return parser


class _Version(argparse.Action):
    """Prints the installed version, looked up only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:  # noqa: A002
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"ampcheck {version('ampcheck')}")
        parser.exit()
