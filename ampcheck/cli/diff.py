"""Show what became of a saved report: findings, plan, dtypes, and the layers that moved, in octaves.

The reports may be of two versions of a model, or of one model in two precisions or at two loss scales. The exit
status is 1 where something got worse: the answer, a finding that is new or severer, a plan that keeps more in
FP32. A range that moved is neither better nor worse; `check --baseline` holds a model to its ranges as well.
"""

import argparse
import sys
from pathlib import Path

from ampcheck.cli import output, writing
from ampcheck.compare.comparison import Comparison, compare_reports
from ampcheck.compare.select import select
from ampcheck.saved.report_json import read, write

FORMATS = ("terminal", "markdown", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ampcheck diff`."""
    for name in ("old", "new"):
        parser.add_argument(
            name, type=Path, metavar=f"{name.upper()}.json", help="a report written with --format json -o"
        )
    parser.add_argument("--format", choices=FORMATS, default="terminal", help="(default: terminal)")
    output.add_file(parser, "write to FILE instead of the screen")
    output.add_color(parser)
    output.add_selecting(parser)


def run(options: argparse.Namespace) -> int:
    """Write the comparison; 1 where something got worse."""
    old, new = (select(read(path), options.config) for path in (options.old, options.new))
    comparison = compare_reports(old, new)
    screen = options.output is None
    text = _text(comparison, options.format, color=screen and output.colored(options.color))
    if screen:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write(options.output, text)
    return int(comparison.worse)


def _text(comparison: Comparison, form: str, *, color: bool) -> str:
    from ampcheck.renderers import comparison as screen
    from ampcheck.renderers import comparison_text as texts

    if form == "terminal":
        return screen.render(comparison, width=writing.width(), color=color)
    return texts.markdown(comparison) if form == "markdown" else texts.to_json(comparison)
