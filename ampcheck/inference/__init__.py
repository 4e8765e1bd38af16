"""Inference and half weights: what casting a model, or running it under autocast, does to what it gives."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ampcheck.diagnose.gaps import of_trace
from ampcheck.inference.audit import audit_forwards, wants_inference
from ampcheck.inference.training import audit_training
from ampcheck.targets.losses import call_model
from ampcheck.targets.spec import Target
from ampcheck.values.report import Report
from ampcheck.values.settings import Settings
from ampcheck.values.verdict import Coverage
from ampcheck.values.wording import plural


def runs_otherwise(target: Target, settings: Settings) -> bool:
    """Tell whether an audit is of forwards alone, or of a model that is cast itself."""
    return wants_inference(target, settings) or settings.cast == "weights"


def what_runs(target: Target, settings: Settings) -> Callable[[Any, Any], Any]:
    """Return what one run of a target calls: its loss, or where it is only used, what it predicts."""
    return (target.predict or call_model) if wants_inference(target, settings) else target.loss


def audit_otherwise(
    report: Report, target: Target, settings: Settings, progress: Callable[[str], None]
) -> Report:
    """Return the report of forwards alone, or of training with cast weights; its findings are still to be shown."""
    if wants_inference(target, settings):
        return audit_forwards(report, target, settings, progress)
    return audit_training(replace(report, cast="weights", log2_scale=0), target, settings, progress)


def coverage_of(report: Report, target: Target, settings: Settings) -> Coverage:
    """Return how much was seen: the traces say it, and what was not run again was not compared."""
    gaps: tuple[str, ...] = (target.left_out,) if target.left_out else ()
    if not settings.verify and report.mode == "infer":
        gaps = ("the outputs were not compared with FP32, because nothing was run again",)
    settled = report.outcomes.get("settled")
    bad = next((one for one in settled.outputs if one.unfit), None) if settled is not None else None
    if bad is not None:
        gaps += (f"{plural(bad.unfit, 'element')} of {bad.name} are not finite in FP32 either",)
    return replace(of_trace(report), gaps=gaps)
