"""Add saved reports of one audit up: its ranks, its batches; findings say on which of them they are.

All must have audited the same target in the same precision at the same loss scale. The order does not matter.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from ampcheck.cli import output
from ampcheck.compare.merge import merge
from ampcheck.errors import ReportError
from ampcheck.saved.report_json import read, to_json, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ampcheck merge`."""
    parser.add_argument(
        "reports", type=Path, nargs="+", metavar="REPORT.json", help="reports written with --format json -o"
    )
    output.add_file(parser, "write the merged report to FILE instead of the screen")


def run(options: argparse.Namespace) -> int:
    """Write the sum; a rank is called as its file, without the ending."""
    twice = next((path for path, times in Counter(options.reports).items() if times > 1), None)
    if twice is not None:
        raise ReportError(f"expected every report once, got {str(twice)!r} twice; merge each report once")
    merged = merge({_name(path, options.reports): read(path) for path in options.reports})
    if options.output is None:
        sys.stdout.write(to_json(merged) + "\n")
    else:
        write(options.output, to_json(merged) + "\n")
    return 0


def _name(path: Path, paths: list[Path]) -> str:
    """Return what tells a file from the others."""
    alone = sum(other.stem == path.stem for other in paths) == 1
    return path.stem if alone else path.with_suffix("").as_posix()
