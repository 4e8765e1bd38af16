"""Apply the plan's change to the file of a model, audit it again, and train some steps before and after.

`git checkout FILE` undoes it. A file that git does not hold as it is, is refused without --force.
"""

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ampcheck.cli import check, output
from ampcheck.errors import TargetError
from ampcheck.fix.applied import in_git, on_branch, patched, unsaved
from ampcheck.renderers.drawing import BLOCKS
from ampcheck.renderers.next_step import LABEL, next_step
from ampcheck.renderers.words import scaler_call
from ampcheck.saved.report_json import write
from ampcheck.targets.spec import parse_spec
from ampcheck.values.report import Report
from ampcheck.values.verdict import Health
from ampcheck.values.wording import clean, plural

if TYPE_CHECKING:
    from ampcheck.fix.long_trial import TrainingCurves

STEPS = 20
#: Columns of a drawn loss curve.
_COLUMNS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ampcheck fix`."""
    check.add_audit_arguments(parser)
    group = parser.add_argument_group("fix")
    group.add_argument("--diff", action="store_true", help="print the change, and write nothing")
    group.add_argument("--branch", metavar="NAME", help="commit the change to a new branch of git")
    group.add_argument("--force", action="store_true", help="change a file that has uncommitted changes")
    group.add_argument(
        "--train-steps",
        type=check.count,
        default=STEPS,
        metavar="N",
        help=f"training steps before and after the change, and in FP32 (default: {STEPS})",
    )
    output.add_selecting(parser)


def run(options: argparse.Namespace) -> int:
    """Change the file, and show what that comes to; what does not help is taken back."""
    spec = parse_spec(options.target)
    if spec.kind != "file":
        raise TargetError(f"expected a file to change, got {options.target!r}", hint="ampcheck fix model.py")
    path = Path(spec.source)
    report = check.audited(options)
    print(f"before  {_verdict(report)}")
    if not report.patch.startswith("---"):
        return _nothing_to_write(report)
    if options.diff:
        print(report.patch, end="")
        return 0
    _refuse_unsaved(path, options)
    return _changed(path, report, options, _curves_of(options))


def _nothing_to_write(report: Report) -> int:
    """Say what is to be done where no change of the file is known."""
    if report.patch:
        print("the change belongs into your training loop:\n")
        print(report.patch, end="")
    else:
        print(f"  {LABEL} {next_step(report) or 'nothing: there is no change to apply'}")
    return int(report.verdict.word is Health.UNSAFE)


def _refuse_unsaved(path: Path, options: argparse.Namespace) -> None:
    why = unsaved(path)
    if why and not options.force:
        raise TargetError(
            f"{path.name} {why}: its change could not be undone by git checkout; commit it first, or:",
            hint=shlex.join(["ampcheck", *options.words, "--force"]),
        )
    if options.branch and not in_git(path):
        raise TargetError(f"{path.name} is not in a git repository, so no branch can be made")


def _curves_of(options: argparse.Namespace) -> "TrainingCurves":
    """Return the model of the file as it is now, ready to be trained."""
    from ampcheck.fix.long_trial import TrainingCurves
    from ampcheck.targets import load

    with contextlib.redirect_stdout(sys.stderr):  # what the user's file prints
        return TrainingCurves(load(options.target, check.options_of(options)), options.train_steps)


def _changed(path: Path, report: Report, options: argparse.Namespace, old: "TrainingCurves") -> int:
    """Write the change, audit it, and keep it if it helps."""
    assert report.plan is not None  # a patch is a plan's
    text = path.read_bytes()
    wide, low = old.in_fp32(), old.as_it_is(report.plan)
    write(path, patched(text.decode(), report.patch))
    try:
        after = check.audited(options)
        fixed = _curves_of(options).as_it_is(report.plan, scaler=report.plan.scaler)
        helps = after.verdict.word not in {Health.UNSAFE, Health.UNKNOWN}
    except BaseException:
        path.write_bytes(text)
        raise
    print(f"after   {_verdict(after)}\n")
    print("\n".join(_drawn({"FP32": wide, "before": low, "after": fixed})))
    if not helps:
        path.write_bytes(text)
        print(f"\nthe change does not make it safe: {path.name} is as it was")
        return 1
    print(f"\n{_kept(path, options, report)}")
    return 0


def _kept(path: Path, options: argparse.Namespace, report: Report) -> str:
    """Return where the change is, and how it is undone."""
    scaler = report.plan.scaler if report.plan is not None else None
    more = f"\nin your training loop: {scaler_call(scaler)}" if scaler is not None else ""
    if options.branch:
        back = on_branch(path, options.branch, "Keep in FP32 what mixed precision breaks")
        return f"committed to branch {options.branch}; git switch {back} goes back{more}"
    if in_git(path):
        return f"changed {path.name}; git checkout {shlex.quote(path.name)} undoes it{more}"
    return f"changed {path.name}; there is no git repository to undo it with{more}"


def _verdict(report: Report) -> str:
    return f"{str(report.verdict.word).upper()}  {clean(report.verdict.sentence)}"


def _drawn(curves: dict[str, tuple[Sequence[float], int]]) -> Iterator[str]:
    """Yield the loss of each training as a row of blocks, all on one scale."""
    finite = [loss for losses, _ in curves.values() for loss in losses if abs(loss) < float("inf")]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    steps = max(len(losses) for losses, _ in curves.values())
    yield f"loss over {plural(steps, 'training step')}, the same seeds and batches"
    for name, (losses, skipped) in curves.items():
        if not losses:
            yield f"  {name:<7} autocast refuses the step"
            continue
        shown = losses[:: max(1, len(losses) // _COLUMNS)]
        drawn = "".join(_block(loss, low, high) for loss in shown)
        more = f", {plural(skipped, 'step')} skipped" if skipped else ""
        yield f"  {name:<7} {drawn}  {losses[0]:.4g} to {losses[-1]:.4g}{more}"


def _block(loss: float, low: float, high: float) -> str:
    """Return the block of a loss; a loss that is not finite is an x."""
    if not abs(loss) < float("inf"):
        return "x"
    return BLOCKS[round(7 * (loss - low) / (high - low))] if high > low else BLOCKS[0]
