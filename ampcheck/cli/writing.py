"""Where a report goes: the screen and files, each in a format of its own."""

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ampcheck.errors import AmpcheckError, ReportError
from ampcheck.renderers import RENDERERS, SUFFIXES, render
from ampcheck.renderers.saving import ended, format_of, save_as
from ampcheck.saved.replacing import writable
from ampcheck.saved.report_json import write
from ampcheck.values.report import Report
from ampcheck.values.trace import Site
from ampcheck.values.wording import no_commands

#: Stands for the screen among the files.
SCREEN = "-"
#: What GitHub takes for the summary of a step, in bytes.
SUMMARY_LIMIT = 1_048_576
_WIDEST = 100
#: Formats whose readers look for files from the top of a repository.
_FROM_REPOSITORY = ("sarif", "github")


@dataclass(frozen=True, slots=True)
class Output:
    """One place that a report is written to."""

    path: str  #: of a file, or the screen
    form: str | None  #: as it was asked for

    @property
    def summary(self) -> bool:
        """Tell whether this is the summary that GitHub shows of a step."""
        return self.path == os.environ.get("GITHUB_STEP_SUMMARY")


def parse(word: str) -> Output:
    """Return the output that FILE, FORMAT:FILE or - stands for."""
    form, colon, path = word.partition(":")
    if form in RENDERERS and path:
        return Output(path, form)
    # What is no format may be a drive, or a path in which a colon is meant.
    if colon and len(form) > 1 and form.replace("-", "").isalpha():
        names = ", ".join(sorted(RENDERERS))
        raise argparse.ArgumentTypeError(f"expected a format of {names} before the colon, got {word!r}")
    return Output(word, None)


def check(outputs: Sequence[Output], form: str | None) -> None:
    """Refuse a file that cannot be written, or whose ending says no format where nothing else does, before the work."""
    for output in outputs:
        said = output.form or form or format_of(output.path) or output.summary
        if not said and Path(output.path).suffix and not Path(output.path).is_char_device():
            endings = ", ".join(SUFFIXES)
            raise ReportError(f"expected a file that ends in {endings}, or FORMAT:FILE, got {output.path!r}")
        if output.path != SCREEN and not output.summary:
            writable(output.path)


def publish(
    report: Report, outputs: Sequence[Output], form: str | None, *, color: bool, short: bool = False
) -> bool:
    """Write a report to every output; `form` is for one alone, and for those that do not say theirs.

    One that fails leaves the others, and the report goes to standard error as text. Return whether none failed.
    """
    failed = False
    for output in outputs or [Output(SCREEN, None)]:
        try:
            _write(report, output, _form(output, form, alone=len(outputs) <= 1), color=color, short=short)
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001  # what one format cannot do, another can
            failed = True
            print(f"ampcheck: error: {_problem(error, output)}", file=sys.stderr)
    if failed:
        with contextlib.suppress(Exception):
            sys.stderr.write(_text(report, "terminal", color=False))
    return not failed


def _problem(error: Exception, output: Output) -> str:
    if isinstance(error, (AmpcheckError, OSError)):
        return str(error)
    return f"could not write {output.path!r}: {type(error).__name__}: {error}; please report this"


def _form(output: Output, form: str | None, *, alone: bool) -> str:
    ending = format_of(output.path) or ("github-summary" if output.summary else None)
    asked = (form or ending) if alone else (ending or form)
    return output.form or asked or "terminal"


def _write(report: Report, output: Output, form: str, *, color: bool, short: bool) -> None:
    shown = _from_repository(report) if form in _FROM_REPOSITORY else report
    if output.path == SCREEN:
        text = _text(shown, form, color=color, short=short)
        sys.stdout.write(text if form == "github" else no_commands(text))
        sys.stdout.flush()
    elif output.summary:
        _add_to_summary(Path(output.path), shown, form)
    elif form == "terminal":
        write(output.path, _text(shown, form, color=False))  # as wide as the screen
    else:
        save_as(shown, output.path, form)


def kept(outputs: Sequence[Output], form: str | None, *, rank: int = 0) -> Path | None:
    """Return the file that a report is kept in while it is not complete; None where no file was asked for.

    It is the JSON that was asked for, or one beside the first file; of a rank but the first it has the rank's number.
    """
    files = [output for output in outputs if output.path != SCREEN and not output.summary]
    files = [output for output in files if _plain(output.path)]
    if not files:
        return None
    alone = len(outputs) <= 1
    saved = next((o for o in files if _form(o, form, alone=alone) == "json"), None)
    if rank:
        return Path((saved or files[0]).path).with_suffix(f".rank{rank}.json")
    return Path(saved.path) if saved else Path(files[0].path).with_suffix(".partial.json")


def _plain(path: str) -> bool:
    """Tell whether a path is a file's, or may become one's; a folder that nobody may look into has none, so far."""
    return not os.path.exists(path) or os.path.isfile(path)  # noqa: PTH110, PTH113  # a Path would raise there


def absolute(output: Output) -> Output:
    """Return an output that stays where it is whatever folder is changed to."""
    named = output.path == SCREEN or output.summary
    return output if named else replace(output, path=os.path.abspath(output.path))  # noqa: PTH100  # links stay


def numbered(output: Output) -> Output:
    """Return an output with the number of this restart in its name, where a launcher has started the job again."""
    again = next((os.environ[name] for name in RESTARTS if os.environ.get(name, "0") not in {"", "0"}), "")
    path = Path(output.path)
    if not again.isdecimal() or output.path == SCREEN or output.summary or not _plain(output.path):
        return output
    return replace(output, path=str(path.with_suffix(f".restart{again}{path.suffix}")))


#: Where torchrun and SLURM say how often a job was started again.
RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


def _text(report: Report, form: str, *, color: bool, short: bool = False) -> str:
    if form == "terminal":
        from ampcheck.renderers.terminal import render as draw

        return ended(draw(report, width=width(), color=color, short=short))
    return ended(render(report, form))


def width() -> int:
    """Return how many columns are written."""
    return min(_WIDEST, shutil.get_terminal_size().columns)


def _add_to_summary(path: Path, report: Report, form: str) -> None:
    """Append to the summary of a step what fits: the report, else the short one, else nothing."""
    try:
        room = SUMMARY_LIMIT - (path.stat().st_size if path.exists() else 0)
        for text in (render(report, form), render(report, "github-summary")):
            if len(text.encode()) < room:
                with path.open("a", encoding="utf-8") as file:
                    file.write(text + "\n")
                return
    except OSError as error:
        raise ReportError(
            f"expected GITHUB_STEP_SUMMARY to name a file, could not write {str(path)!r}: {error.strerror}"
        ) from error
    print(f"ampcheck: {str(path)!r} is full, nothing was added to the step's summary", file=sys.stderr)


def _from_repository(report: Report) -> Report:
    """Return a report whose files that lie below this folder are named from the top of its repository."""
    try:
        here = Path.cwd()
    except OSError:  # it was deleted
        return report
    workspace = Path(os.environ.get("GITHUB_WORKSPACE") or here / ".git")
    tops = [workspace, *(path for path in (here, *here.parents) if (path / ".git").exists())]
    top = next((top for top in tops if here.is_relative_to(top)), here)
    folder = here.relative_to(top)
    if folder == Path():
        return report

    @cache
    def named(file: str) -> str:
        lies_here = file and not Path(file).is_absolute() and Path(file.rpartition(".py")[0] + ".py").exists()
        return (folder / file).as_posix() if lies_here else file

    def moved(site: Site) -> Site:
        return site._replace(file=named(site.file))

    findings = tuple(replace(f, sites=tuple(map(moved, f.sites))) for f in report.findings)
    return replace(report, findings=findings, target=named(report.target))
