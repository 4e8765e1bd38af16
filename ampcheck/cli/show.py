"""Show a saved report; torch is not needed for that."""

import argparse
from pathlib import Path

from ampcheck.cli import output
from ampcheck.saved.report_json import read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ampcheck show`."""
    parser.add_argument("report", type=Path, metavar="REPORT.json", help="a report written with -o FILE.json")
    output.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Publish a saved report; the comments of the code counted when it was made."""
    return output.publish(read(options.report), options, lambda _: None)
