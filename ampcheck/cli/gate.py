"""Holding a report against a baseline, and keeping the baseline."""

import argparse
import shlex
import sys
from pathlib import Path

from ampcheck.compare.baseline import accept, accepted_by, held, name
from ampcheck.compare.baseline_json import read, to_json
from ampcheck.compare.differences import Difference, compare
from ampcheck.errors import ReportError
from ampcheck.renderers.differences import place_words
from ampcheck.renderers.drawing import fitted
from ampcheck.saved.report_json import write
from ampcheck.values.report import Report
from ampcheck.values.wording import clean, plural

_WHAT = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that can hold a report against a baseline."""
    group = parser.add_argument_group(
        "baseline", "the findings accepted so far; any other makes the exit status 1"
    )
    group.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="compare the report with the baseline FILE (ampcheck baseline makes one)",
    )
    group.add_argument(
        "--update-baseline", action="store_true", help="accept the report as it is; reasons are kept"
    )
    add_reason(group)


def add_reason(group: "argparse._ActionsContainer") -> None:
    """Add the option that says why findings are accepted."""
    group.add_argument(
        "--reason",
        default="",
        metavar="TEXT",
        help="why findings that are new in a baseline are accepted (default: when, and by whom)",
    )


def gated(report: Report, options: argparse.Namespace) -> tuple[Report, tuple[Difference, ...]]:
    """Return the report without what its baseline accepts, and what is different from the baseline."""
    if options.baseline is None:
        if options.update_baseline:
            raise ReportError("expected a baseline to update, got none; name it with --baseline FILE")
        return report, ()
    if options.update_baseline:
        update(options.baseline, report, options.reason)
        return held(report, read(options.baseline)[name(report)]), ()
    if not options.baseline.exists():
        raise ReportError(
            f"expected a baseline, {str(options.baseline)!r} does not exist; make it with:",
            hint=command(options),
        )
    baselines = read(options.baseline)
    if name(report) not in baselines:
        listed = ", ".join(map(repr, baselines)) or "nothing"
        raise ReportError(
            f"no baseline of {name(report)!r}, it has {listed}; add it with:",
            where=str(options.baseline),
            hint=command(options),
        )
    baseline = baselines[name(report)]
    return held(report, baseline), compare(report, baseline)


def update(path: Path, report: Report, reason: str) -> None:
    """Write a report's baseline into a file, beside those of other audits, and say what is still to be done."""
    baselines = read(path) if path.exists() else {}
    made = accept(report, baselines.get(name(report)), reason or accepted_by())
    write(path, to_json({**baselines, name(report): made}))
    layers, findings = plural(len(made.layers), "layer"), plural(len(made.findings), "accepted finding")
    print(f"ampcheck: {path}: {clean(name(report))}, {layers}, {findings}", file=sys.stderr)
    for accepted in made.findings:
        at = place_words(accepted.module, accepted.op)
        what = fitted(clean(f"{accepted.code} {accepted.name}"), _WHAT)
        print(f"  {what} at {at}: {clean(accepted.reason)}", file=sys.stderr)
    if made.findings and not reason:
        print('  → a better "reason" can be written into the file, or given with --reason', file=sys.stderr)


def command(options: argparse.Namespace) -> str:
    """Return the command that makes the baseline what the report is."""
    return shlex.join(["ampcheck", *options.words, "--update-baseline"])
