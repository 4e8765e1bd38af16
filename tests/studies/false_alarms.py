"""Does ampcheck cry wolf? Ordinary models, at random initialisation or trained, audited in both precisions.

    python tests/studies/false_alarms.py --report reports/false_alarms.md
    python tests/studies/false_alarms.py --trained 200 --report reports/false_alarms_trained.md torchvision:resnet18 ...

Audits are kept in --cache, so that after a change of the rules only the rules run again; --redo runs audits
again whose name matches a pattern, `--redo '*'` all.
"""

import argparse
import gc
import math
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from alarm_text import page
from judge import Opinion, Training, opinion, rounded, training
from ordinary import ORDINARY, ordinary, redrawn

from ampcheck.diagnose.rules import diagnose
from ampcheck.diagnose.verdict import judged
from ampcheck.errors import AmpcheckError
from ampcheck.run.audit import audit
from ampcheck.saved.report_json import from_json, to_json, write
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.report import Report
from ampcheck.values.settings import Settings

PRECISIONS = ("fp16", "bf16")
#: Gradient error from which on a row says what rounding the weights alone does.
NOISY = 0.1
#: Draws of weights and batch on which an error finding is judged a second time.
DRAWS = 3
#: Steps that a training goes on for.
STEPS = 60


@dataclass(frozen=True)
class Row:
    """One model in one precision."""

    spec: str
    precision: str
    report: Report | None  #: None where it raised
    raised: str = ""
    rounded: float | None = None  #: gradient error of rounded weights, where the audit's is large

    @property
    def errors(self) -> list[Finding]:
        """Return the findings that claim harm."""
        return self._of(Severity.ERROR)

    @property
    def warnings(self) -> list[Finding]:
        """Return the findings that name a risk."""
        return self._of(Severity.WARNING)

    def _of(self, severity: Severity) -> list[Finding]:
        return [] if self.report is None else [f for f in self.report.findings if f.severity is severity]


@dataclass(frozen=True)
class Proof:
    """An error finding, and what runs that share nothing with it say."""

    row: Row
    finding: Finding
    opinions: tuple[Opinion, ...]  #: by draw
    healed: tuple[Opinion, ...]  #: the same with the modules of the plan in FP32; empty without any
    trainings: tuple[Training, ...] = ()  #: how training goes on, by random state


def audited(spec: str, precision: str, budget: float, trained: int = 0) -> Row:
    """Return a model's audit."""
    try:
        target = ordinary(spec, trained=trained)
        return Row(spec, precision, audit(target, Settings(precision, budget=budget)))
    except (AmpcheckError, RuntimeError, ImportError) as error:
        return Row(spec, precision, None, f"{type(error).__name__}: {str(error)[:120]}")


def remembered(file: Path, spec: str, precision: str) -> Row | None:
    """Return an audit that was kept, judged by the rules of now; None where there is none that can be read."""
    try:
        report = from_json(file.read_bytes())
    except (OSError, AmpcheckError, TypeError, KeyError):
        return None
    return Row(spec, precision, judged(replace(report, findings=diagnose(report))))


def proof(row: Row, finding: Finding, trained: int) -> Proof:
    """Judge an error a second time, on several draws of weights and batch."""
    unscaled = finding.numbers.get("log2_scale") == 0 and row.precision == "fp16"
    scale = 0 if unscaled else None
    assert row.report is not None
    plan = row.report.plan
    modules = plan.fp32_modules if plan is not None and plan.precision == row.precision else ()

    builds = [partial(built, row.spec, seed, trained) for seed in range(DRAWS)]
    found = tuple(opinion(build, row.precision, scale) for build in builds)
    healed = tuple(opinion(build, row.precision, scale, modules) for build in builds) if modules else ()
    goes_on = trained and modules and all(math.isfinite(one.error) for one in found)
    trainings = tuple(
        training(builds[0], row.precision, modules, seed, redrawn, STEPS)
        for seed in (range(DRAWS) if goes_on else ())
    )
    return Proof(row, finding, found, healed, trainings)


def built(spec: str, seed: int, trained: int = 0) -> tuple[Any, Any, Any]:
    """Return model, batch and loss of an ordinary model."""
    target = ordinary(spec, seed, trained)
    return target.model, target.batch(0), target.loss


def with_yardstick(row: Row, file: Path, trained: int) -> Row:
    """Return the row with what rounding the weights alone does, where the gradient error is large.

    It is kept beside the audit.
    """
    settled = row.report.outcomes.get("settled") if row.report is not None else None
    if settled is None or not settled.finite or settled.grad_error < NOISY:
        return row
    if not file.is_file():
        write(file, repr(rounded(partial(built, row.spec, 0, trained), row.precision)))
    return replace(row, rounded=float(file.read_text(encoding="utf-8")))


def main() -> int:
    """Audit, judge, write the page; return 1 where an error finding is not proved."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="such as torchvision:resnet18 (default: all)"
    )
    parser.add_argument("--report", type=Path, help="write the page here")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "ampcheck_false_alarms")
    parser.add_argument(
        "--redo", nargs="*", default=[], metavar="PATTERN", help="such as 'timm:* bf16' or '*'"
    )
    parser.add_argument("--budget", type=float, default=10.0, help="seconds to search for a remedy, each")
    parser.add_argument("--trained", type=int, default=0, metavar="N", help="train N steps in FP32 first")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for spec in options.models or ORDINARY:
        rows += [row_of(spec, precision, options) for precision in PRECISIONS]
        gc.collect()
    proofs = [proof(row, finding, options.trained) for row in rows for finding in row.errors]
    text = page(rows, proofs, options.budget, options.trained)
    print(text)
    if options.report is not None:
        options.report.write_text(text, encoding="utf-8")
    return int(any(row.raised for row in rows) or bool(proofs))


def row_of(spec: str, precision: str, options: argparse.Namespace) -> Row:
    """Return a row, kept or new."""
    after = f"_after_{options.trained}" if options.trained else ""
    file = options.cache / f"{spec.replace(':', '_')}_{precision}{after}.json"
    wanted = any(
        fnmatch(f"{spec} {precision}", pattern) or fnmatch(spec, pattern) for pattern in options.redo
    )
    row = None if wanted else remembered(file, spec, precision)
    if row is None:
        begun = time.process_time()
        row = audited(spec, precision, options.budget, options.trained)
        if row.report is not None:
            options.cache.mkdir(parents=True, exist_ok=True)
            write(file, to_json(row.report))
        codes = " ".join(f"{finding.code}:{finding.severity}" for finding in (*row.errors, *row.warnings))
        print(
            f"{time.process_time() - begun:6.1f} s {spec} {precision} {codes} {row.raised}",
            file=sys.stderr,
            flush=True,
        )
    return with_yardstick(row, file.with_suffix(".rounded"), options.trained)


if __name__ == "__main__":
    sys.exit(main())
