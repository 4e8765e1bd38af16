"""Where a report goes: the screen and files, each in a format of its own."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ampcheck.codec import write
from ampcheck.errors import ReportError
from ampcheck.renderers import RENDERERS, SUFFIXES, render
from ampcheck.renderers.saving import ended, format_of, save_as
from ampcheck.report import Report
from ampcheck.trace import Site

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
    """Refuse a file whose ending says no format where nothing else does, before any work is done for it."""
    for output in outputs:
        said = output.form or form or format_of(output.path) or output.summary
        if not said and Path(output.path).suffix and not Path(output.path).is_char_device():
            endings = ", ".join(SUFFIXES)
            raise ReportError(f"expected a file that ends in {endings}, or FORMAT:FILE, got {output.path!r}")


def publish(report: Report, outputs: Sequence[Output], form: str | None, *, color: bool) -> None:
    """Write a report to every output; `form` is for one alone, and for those that do not say theirs."""
    alone = len(outputs) <= 1
    for output in outputs or [Output(SCREEN, None)]:
        ending = format_of(output.path) or ("github-summary" if output.summary else None)
        asked = (form or ending) if alone else (ending or form)
        chosen = output.form or asked or "terminal"
        shown = _from_repository(report) if chosen in _FROM_REPOSITORY else report
        if output.path == SCREEN:
            sys.stdout.write(_text(shown, chosen, color=color))
            sys.stdout.flush()
        elif output.summary:
            _add_to_summary(Path(output.path), shown, chosen)
        elif chosen == "terminal":
            write(output.path, _text(shown, chosen, color=False))  # as wide as the screen
        else:
            save_as(shown, output.path, chosen)


def _text(report: Report, form: str, *, color: bool) -> str:
    if form == "terminal":
        from ampcheck.renderers.terminal import render as draw

        return ended(draw(report, width=width(), color=color))
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
    here = Path.cwd()
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
