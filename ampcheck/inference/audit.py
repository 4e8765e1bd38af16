"""The audit of forwards: what they give in FP32 and in low precision, operation by operation, and why it differs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ampcheck.inference.advisor import Advisor
from ampcheck.inference.casting import Way
from ampcheck.inference.iterations import iterated
from ampcheck.inference.lab import ForwardLab, Subject
from ampcheck.observe.cuda_on_cpu.wide import execute
from ampcheck.observe.dtypes import DTYPES, PRECISIONS
from ampcheck.observe.model.cast_weights import state
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.model.structure import modules
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.reference.lineage import error_jumps, overflown_casts
from ampcheck.observe.reference.pair import SAMPLES, pair_errors
from ampcheck.observe.statistics.step_record import Fetched
from ampcheck.observe.step import StepRaised, Widened, users_code
from ampcheck.targets.losses import call_model
from ampcheck.targets.lossfinder import STAND_IN_NOTE
from ampcheck.targets.spec import Target
from ampcheck.values.report import Report
from ampcheck.values.settings import Progress, Settings
from ampcheck.values.trace import StepSummary, Trace, add_maps


def stored_dtypes(model: Any) -> set[torch.dtype]:
    """Return the half-precision dtypes that a model's parameters are stored in."""
    return {tensor.dtype for _, _, tensor, buffer in state(model) if not buffer} & set(PRECISIONS)


def wants_inference(target: Target, settings: Settings) -> bool:
    """Tell whether a target is to be used rather than trained, as far as it shows."""
    if settings.mode != "auto":
        return settings.mode == "infer"
    if target.infers:
        return True
    parameters = [tensor for _, _, tensor, buffer in state(target.model) if not buffer]
    return bool(parameters) and not any(tensor.requires_grad for tensor in parameters)


def audit_forwards(report: Report, target: Target, settings: Settings, progress: Progress) -> Report:
    """Return the report of a target's forwards; its findings are still to be shown."""
    halves = stored_dtypes(target.model)
    cast = settings.cast if settings.cast != "auto" else "weights" if halves else "autocast"
    notes = tuple(note for note in report.notes if note != STAND_IN_NOTE)  # no loss is asked for
    report = replace(report, mode="infer", cast=cast, log2_scale=0, stand_in_loss=False, notes=notes)
    subject = Subject(target.model, list(target.batches), target.predict or call_model)
    with _evaluating(target.model) as shown:
        report = replace(report, notes=(*report.notes, *shown, *_of_halves(halves)))
        with users_code():
            lab = ForwardLab(subject)
        way = Way(DTYPES[report.precision], cast == "weights", settings.keep)
        report = _recorded(report, subject, way, progress)
        if not lab.judgeable:
            summary = StepSummary(float("nan"), 0, 0.0, nonfinite=True)
            return replace(report, reference=replace(report.reference, steps=(summary,)))
        if settings.verify:
            report = Advisor(report, lab, progress, settings.keep).advise(settings.budget)
    return report


def _of_halves(halves: set[torch.dtype]) -> tuple[str, ...]:
    if not halves:
        return ()
    names = " and ".join(sorted(PRECISIONS[dtype] for dtype in halves))
    return (
        f"the weights are stored in {names}: FP32 computes with these very numbers, which count as exact",
    )


@contextmanager
def _evaluating(model: Any) -> Iterator[tuple[str, ...]]:
    """Have every module in evaluation mode, as a model is used; yield what is to be said of that."""
    training = [module for module in modules(model) if module.__dict__.get("training")]
    for module in training:
        module.__dict__["training"] = False
    try:
        yield ("the model was put in evaluation mode",) if training else ()
    finally:
        for module in training:
            module.__dict__["training"] = True


def _recorded(report: Report, subject: Subject, way: Way, progress: Progress) -> Report:
    """Return the report with every batch run and recorded in FP32 and in low precision."""
    before = Snapshot(subject.model, list(subject.batches))
    for index in range(len(subject.batches)):
        of = f", batch {index + 1} of {len(subject.batches)}" if len(subject.batches) > 1 else ""
        one = Subject(subject.model, subject.batches[index : index + 1], subject.predict)
        try:
            progress(f"FP32 reference{of}")
            reference = _record(one, Way())
            before.restore()
            progress(f"{report.precision} {report.cast}{of}")
            low = _record(one, way)
        finally:
            before.restore()
        report = _with_pair(report, reference, low)
    return report


_Run = tuple[Trace, Fetched | None, dict[Any, Any]]


def _with_pair(report: Report, reference: _Run, low: _Run) -> Report:
    (wide, wide_fetched, _), (narrow, fetched, sources) = reference, low
    errors = {}
    shown: tuple[str, ...] = ()
    if fetched is not None and wide_fetched is not None:
        errors = pair_errors(wide_fetched, fetched, 0)
        shown = () if "is called" in "".join(report.notes) else iterated(narrow, wide_fetched, fetched)
    found = (
        *overflown_casts(sources, narrow, wide, report.dtype),
        *error_jumps(sources, errors, report.dtype),
    )
    return replace(
        report,
        reference=report.reference + wide,
        low=report.low + narrow,
        errors=add_maps(report.errors, errors),
        notes=tuple(dict.fromkeys((*report.notes, *shown))),
        error_jumps=report.error_jumps or found,
    )


def _record(subject: Subject, way: Way) -> _Run:
    """Run one batch, recorded; what the user's code raises in low precision is part of the trace."""
    recorder = Recorder(subject.model, samples=SAMPLES, execute=execute)
    if way.dtype is None:
        Widened(subject.model, list(subject.batches))
    try:
        with users_code(recorder), subject.ready(way):
            for batch in subject.inputs(way):
                with recorder:
                    subject.run(batch, way)
    except StepRaised as raised:
        if way.dtype is None or raised.out_of_memory:
            raise
        return Trace(failure=raised.failure), None, {}
    fetched = recorder.fetch()
    trace = replace(recorder.trace(fetched), steps=(StepSummary(0.0, 0, 0.0, nonfinite=False),))
    return trace, fetched, recorder.sources()
