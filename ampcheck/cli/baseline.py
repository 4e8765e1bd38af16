"""Write down what an audit finds today, for `ampcheck check --baseline FILE` to hold later ones against.

A file holds one baseline for each target and precision. Findings in it are accepted, each for a reason: yours,
or when it was accepted and by whom. Made again, it keeps the reasons that were given.
"""

import argparse
from pathlib import Path

from ampcheck.cli import check, gate, output
from ampcheck.compare.baseline import FILE
from ampcheck.compare.select import select, source
from ampcheck.saved.report_json import read
from ampcheck.values.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ampcheck baseline`."""
    check.add_audit_arguments(parser)
    output.add_selecting(parser)
    default = f"what pyproject.toml calls the baseline, else {FILE}"
    output.add_file(parser, f"where to write (default: {default})", dest="baseline")
    gate.add_reason(parser)


def run(options: argparse.Namespace) -> int:
    """Audit a target, or read a saved report, and write its baseline."""
    gate.update(options.baseline or Path(FILE), _report(options), options.reason)
    return 0


def _report(options: argparse.Namespace) -> Report:
    saved = Path(options.target)
    if saved.suffix == ".json" and saved.is_file():
        return select(read(saved), options.config)
    return select(check.audited(options), options.config, source)
