"""What the command line writes, and where."""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from ampcheck.cli import gate, writing
from ampcheck.compare.config import FAIL_ON, NAMES, find, key
from ampcheck.compare.select import Reader, checked, select, source
from ampcheck.errors import AmpcheckError
from ampcheck.renderers import RENDERERS, SUFFIXES
from ampcheck.renderers.differences import gap
from ampcheck.values.findings import Severity
from ampcheck.values.report import Report
from ampcheck.values.verdict import Health
from ampcheck.values.wording import clean, escaped, no_commands, some

COULD_NOT_WRITE = 2
_INFO = Severity.INFO.rank
#: Seconds after which a command says what it is doing where there is no terminal, and for how long on one.
PATIENCE = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that shows a report."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--format",
        choices=sorted(RENDERERS),
        help="how to write the report (default: as FILE ends, terminal on the screen)",
    )
    group.add_argument(
        "-o",
        "--output",
        type=writing.parse,
        action="append",
        default=[],
        metavar="FILE",
        help="write the report to FILE instead of the screen, in the format of its ending "
        f"({' '.join(SUFFIXES)}) or as FORMAT:FILE; can be given again, and - is the screen; "
        "Markdown gets its pictures beside it, $GITHUB_STEP_SUMMARY is added to",
    )
    group.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show the tables on the screen too: layers, gradients, loss scales, casts, notes",
    )
    add_color(group)
    group.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        help="exit with 1 on findings of this severity or worse (default: error; with ampcheck run, "
        "the exit status of the script)",
    )
    add_selecting(parser)
    gate.add_arguments(parser)


def add_file(parser: argparse.ArgumentParser, about: str, dest: str = "output") -> None:
    """Add the option that names the one file that a command writes."""
    parser.add_argument("-o", "--output", dest=dest, type=Path, metavar="FILE", help=about)


def add_color(group: "argparse._ActionsContainer") -> None:
    """Add the option that says where colours go."""
    group.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour on the screen (default: auto)",
    )


def add_selecting(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which findings count."""
    group = parser.add_argument_group("selecting", "CODES: AMP101, a family such as AMP2, or near-overflow")
    group.add_argument(
        "--select", type=names, action="extend", metavar="CODES", help="let only these findings count"
    )
    group.add_argument(
        "--ignore", type=names, action="extend", metavar="CODES", help="let these findings not count"
    )


def configure(options: argparse.Namespace) -> None:
    """Give a command the configuration of its target, or of the folder it runs in, and fill in what it lacks."""
    config = checked(find(_start(options)).overridden(vars(options)))
    options.config = config
    if isinstance(getattr(options, "output", None), list):
        writing.check(options.output, options.format)
    for name in NAMES:
        if getattr(options, key(name), ...) is None:
            setattr(options, key(name), getattr(config, key(name)))


def _start(options: argparse.Namespace) -> Path:
    """Return the folder from which on the configuration is looked for."""
    target = str(getattr(options, "target", ""))
    files = (Path(target), Path(target.rpartition(":")[0]))
    return next((path.parent for path in files if path.is_file()), Path())


def publish(
    report: Report, options: argparse.Namespace, read: Reader = source, *, quiet: bool = False
) -> int:
    """Write a report where it was asked for, with the findings that count, and return the exit status.

    Where none goes to the screen, a line says what was found and where the report is, unless `quiet`.
    """
    report, differences = gate.gated(select(report, options.config, read), options)
    color, short = colored(options.color), not options.verbose
    written = writing.publish(report, options.output, options.format, color=color, short=short)
    if differences:
        sys.stdout.flush()
        color = colored(options.color, sys.stderr)
        sys.stderr.write(gap(differences, gate.command(options), width=writing.width(), color=color))
    if not written:
        return COULD_NOT_WRITE
    files = [clean(output.path) for output in options.output]
    if files and writing.SCREEN not in files and not quiet:
        found = some([f"{one.code} {one.name}" for one in report.findings if one.severity.rank < _INFO])
        words = f"{report.verdict.word.upper()}{', ' if found else ''}{found}"
        print(f"ampcheck: {words}; the report is in {some(files)}", file=sys.stderr)
    return 1 if differences else _status(report, options.fail_on)


def names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def colored(choice: str, stream: TextIO | None = None) -> bool:
    """Tell whether colours go to a stream, the standard output where none is named."""
    # A script may have put an object of its own there, or none.
    terminal = getattr(stream or sys.stdout, "isatty", bool)()
    return choice == "always" or (choice == "auto" and terminal and "NO_COLOR" not in os.environ)


def _status(report: Report, fail_on: str) -> int:
    if fail_on == "never":
        return 0
    at_fault = report.worst is not None and report.worst.rank <= Severity(fail_on).rank
    return int(at_fault or report.verdict.word is Health.UNSAFE)


def complain(error: AmpcheckError) -> None:
    """Say on stderr what went wrong, where, and what would help."""
    lines = [f"ampcheck: error: {error}", *(f"  {line}" for line in error.hint.splitlines())]
    print(no_commands(escaped("\n".join(lines))), file=sys.stderr)


def progress(*, lines: bool = False) -> Callable[[str], None]:
    """Return how to say what is being done: one line on a terminal; elsewhere a line for each `case: part`.

    Without `lines` that begins after a few seconds: who waits that long wants to know what for. A part is what comes
    before the comma: `batch 8: timing, round 3` is said once, for its first round.
    """
    begun = time.monotonic()
    if not sys.stderr.isatty():
        return _line_per_part(begun if lines else begun + PATIENCE)

    def say(text: str) -> None:
        since = time.monotonic() - begun
        tail = f" ... {since:.0f} s" if since > PATIENCE else " ..."
        sys.stderr.write(f"\r\x1b[2K{text}" + (tail if text else ""))
        sys.stderr.flush()

    return say


def _line_per_part(begins: float) -> Callable[[str], None]:
    """Return what says each part once, from a time on."""
    said: set[str] = set()

    def say(text: str) -> None:
        case, colon, rest = text.rpartition(": ")
        part = case + colon + rest.split(",", maxsplit=1)[0]
        if part and part not in said and time.monotonic() >= begins:
            said.add(part)
            print(part, file=sys.stderr, flush=True)

    return say
