"""One step of a target, run twice from the same state, in FP32 and in low precision; what it came to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any

import torch

from ampcheck.diagnose.gaps import grouped, of_trace
from ampcheck.fix.verify import comparable, compared
from ampcheck.observe.cuda_on_cpu.wide import execute
from ampcheck.observe.dtypes import DTYPES
from ampcheck.observe.layers import LayerRecorder
from ampcheck.observe.model.held import copied, held, spoilt
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.model.structure import named_parameters
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.reference.pair import SAMPLES, pair_errors
from ampcheck.observe.step import Step, StepRaised, StepRun, Widened, failed, gradients, recorded
from ampcheck.targets.spec import Target
from ampcheck.values.outcome import Outcome
from ampcheck.values.parts import outcome_of
from ampcheck.values.report import Report
from ampcheck.values.settings import Progress, Settings
from ampcheck.values.trace import PairError, Site, add_maps
from ampcheck.values.verdict import Coverage
from ampcheck.values.wording import clean

Make = Callable[[Any], Recorder]


@dataclass(slots=True)
class Pair:
    """The report with one more step in it, what that step came to, and where the FP32 run left the model."""

    report: Report
    after: Snapshot
    grads: list[torch.Tensor | None]
    left: Snapshot  #: where the low-precision run left it
    judged: "Judged"


@dataclass(slots=True)
class Judged:
    """What a step came to, and how to go back to where it begins."""

    step: Step
    before: Snapshot | None  #: None where it is the only one, and the model is there already
    outcome: Outcome
    trained: dict[str, int]  #: elements of the parameters that have a gradient in FP32, by name
    unseen: dict[str, int]  #: of these, the ones whose gradient could not be compared
    state: int  #: tensors beside parameters that could

    @contextmanager
    def again(self, first: Snapshot | None) -> Iterator[None]:
        """Go back to where this step begins; afterwards to where the first one does."""
        if first is None or self.before is None:
            yield
            return
        self.before.restore()
        try:
            yield
        finally:
            first.restore()


def trained_tensors(model: Any) -> frozenset[int]:
    """Return the identities of the parameters that are trained."""
    return frozenset(id(parameter) for _, _, parameter in named_parameters(model) if parameter.requires_grad)


def run_pair(
    report: Report, step: Step, settings: Settings, progress: Progress, carried: Snapshot | None = None
) -> Pair:
    """Run one step twice from the same weights and add what was seen to the report.

    What an earlier step left behind in low precision is `carried` into this one's.
    """
    before = Snapshot(step.model, step.batch, step.loss)
    try:
        progress("FP32 reference")
        reference, grads, note = _reference(step, before, _recorder(settings))
        after = Snapshot(step.model, step.loss) if settings.steps > 1 else before
        state = copied(held(step.model, step.loss))
        scale, refused, low = _low(report, step, settings, (before, carried), progress)
        left = Snapshot(step.model, step.loss) if settings.steps > 1 else before
        off = spoilt(state, held(step.model, step.loss)) if low.trace.failure is None else {}
        named = [(module, name) for module, name, _ in named_parameters(step.model)]
        wide = dict(comparable((*name, grad) for name, grad in zip(named, grads, strict=True)))
        lowered = ((module, name, parameter.grad) for module, name, parameter in named_parameters(step.model))
        rows = compared(wide, comparable(lowered), scale)
    finally:
        before.restore()
    errors: dict[Site, PairError] = {}
    if low.trace.failure is None:
        errors = pair_errors(reference.fetched, low.fetched, scale)
    added = replace(
        report,
        log2_scale=scale,
        refused_scales=report.refused_scales + refused,
        reference=report.reference + reference.trace,
        low=report.low + low.trace,
        errors=add_maps(report.errors, errors),
        error_jumps=report.error_jumps or low.error_jumps(reference.trace, errors, report.dtype),
        notes=tuple(dict.fromkeys(report.notes + note)),
    )
    failure = low.trace.failure
    if failure is None:
        outcome = outcome_of(rows, low.fetched.losses[0], reference.fetched.losses[0], scale)
        outcome = replace(outcome, state=off)
    else:
        outcome = Outcome(scale, raised=f"{failure.kind}: {failure.message}")
    trained = {name: grad.numel() for name, grad in wide.items()}
    unseen = {name: size for name, size in trained.items() if name not in rows and failure is None}
    judged = Judged(step, before if settings.steps > 1 else None, outcome, trained, unseen, len(state))
    return Pair(added, after, grads, left, judged)


def covered(report: Report, target: Target, worst: Judged) -> Coverage:
    """Return how much of the target was seen."""
    able = sum(parameter.requires_grad for _, _, parameter in named_parameters(target.model))
    return replace(
        of_trace(report),
        parameters=len(worst.trained),
        elements=sum(worst.trained.values()),
        unseen=grouped(worst.unseen, worst.trained),
        idle=max(0, able - len(worst.trained)),
        state=worst.state,
    )


def reproduced(coverage: Coverage, report: Report, worst: Judged) -> Coverage:
    """Return what was seen, and that a re-run came out otherwise, where it did."""
    again = report.outcomes["settled"]
    # What a re-run alone can see is no contradiction: what the next step makes of what this one leaves behind.
    if again.harmed == worst.outcome.harmed or (again.finite and (again.parts or again.state)):
        return coverage
    gap = (
        f"the step gives another result when it is run again ({clean(worst.outcome.words)}; then "
        f"{clean(again.words)}): something outside of the model changes it"
    )
    return replace(coverage, gaps=(*coverage.gaps, gap))


def _reference(
    step: Step, before: Snapshot, make: Make
) -> tuple[StepRun, list[torch.Tensor | None], tuple[str, ...]]:
    """Run the step in FP32; return the run, its gradients and what is to be said of it.

    Parameters stored in half precision are held in FP32 meanwhile, unless the model does not run that way.
    """
    widened = Widened(step.model, step.batch)
    note: tuple[str, ...] = ()
    try:
        run = recorded(step, make(step.model))
    except StepRaised as raised:
        before.restore()
        if not widened or raised.out_of_memory:
            raise
        run = recorded(step, make(step.model))
        note = (
            f"the reference keeps half-precision parameters, since with FP32 ones the model raises: {raised}",
        )
        return run, gradients(step.model), note
    grads = gradients(step.model)
    widened.narrow()
    return run, grads, note


def _low(
    report: Report,
    step: Step,
    settings: Settings,
    begins: tuple[Snapshot, Snapshot | None],
    progress: Progress,
) -> tuple[int, tuple[int, ...], StepRun]:
    """Run the step in low precision, at a smaller scale where the gradients overflow, as GradScaler does."""
    scale = report.log2_scale
    refused: tuple[int, ...] = ()
    while True:
        progress(f"{settings.precision} at loss scale 2^{scale}")
        begins[0].restore()
        if begins[1] is not None:
            begins[1].restore_state(trained_tensors(step.model))
        try:
            low = recorded(step, _recorder(settings)(step.model), DTYPES[settings.precision], scale)
        except StepRaised as raised:
            if raised.out_of_memory:
                raise
            return scale, refused, failed(raised)
        overflowed = low.trace.steps[0].nonfinite and isfinite(low.fetched.losses[0])
        if not overflowed or settings.log2_scale is not None or scale == 0 or settings.precision == "bf16":
            return scale, refused, low
        refused += (scale,)
        scale -= 1


def _recorder(settings: Settings) -> Make:
    kind = LayerRecorder if settings.layers_only else Recorder
    return partial(kind, samples=SAMPLES, most=settings.sample, execute=execute)
