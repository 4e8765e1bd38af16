"""The audit: a target's steps run in pairs, compared, and judged."""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ampcheck.advise import Advisor
from ampcheck.groups import group_sentences
from ampcheck.observe.book import Fetched
from ampcheck.observe.layers import LayerRecorder
from ampcheck.observe.lineage import leaps, overflown_casts
from ampcheck.observe.measure import Arena
from ampcheck.observe.pair import SAMPLES, pair_errors
from ampcheck.observe.prepare import compiled, shape_lazy_parameters
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.sampling import words
from ampcheck.observe.state import Snapshot
from ampcheck.observe.step import (
    Step,
    StepRaised,
    Widened,
    clear_gradients,
    gradients,
    run,
    set_gradients,
    users_code,
)
from ampcheck.observe.structure import named_parameters
from ampcheck.observe.updates import lost_updates
from ampcheck.observe.wide import execute
from ampcheck.patch import written
from ampcheck.plan import Plan
from ampcheck.report import Report
from ampcheck.rules import diagnose
from ampcheck.settings import Settings
from ampcheck.targets.spec import Target
from ampcheck.trace import Leap, PairError, Phase, Site, StepSummary, Trace, add_maps
from ampcheck.training import Course, trained
from ampcheck.verify import Lab

#: Where GradScaler starts.
DEFAULT_LOG2_SCALE = 16
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

Progress = Callable[[str], None]
Make = Callable[[Any], Recorder]


@dataclass(slots=True)
class _Run:
    """One recorded step."""

    trace: Trace
    fetched: Fetched
    sources: Mapping[Site, Sequence[Site]]  #: what each operation's results were made of


def audit(target: Target, settings: Settings, progress: Progress = lambda _: None) -> Report:
    """Run the paired steps of a target and report what low precision does to them.

    Whatever happens, the model, the batches and all random generators are left as they were.
    """
    if settings.precision != "auto":
        return _audit(target, settings, progress)
    report = _audit(target, replace(settings, precision="fp16", verify=True), progress)
    if not report.judgeable:
        return report
    as_it_is = report.plan is not None and report.plan == Plan("fp16", scaler=report.plan.scaler)
    if as_it_is or report.outcomes["bf16"].harmed:
        return report
    report = _audit(target, replace(settings, precision="bf16", verify=True), progress)
    return replace(report, notes=(*report.notes, "bf16 was chosen: fp16 would need changes, bf16 needs none"))


def _audit(target: Target, settings: Settings, progress: Progress) -> Report:
    with target.active():
        notes = target.notes + _prepare(target) + _less(settings)
        report = Report(
            target.name,
            settings.precision,
            log2_scale=_first_scale(settings),
            reference=Trace(),
            low=Trace(),
            stand_in_loss=target.stand_in_loss,
            notes=notes,
            environment=_environment(target.model, settings),
        )
        before = Snapshot(target.model, target.loss, target.after_step) if settings.steps > 1 else None
        try:
            report = _steps(report, target, settings, progress)
        finally:
            if before is not None:
                before.restore()
        if settings.verify and report.judgeable:
            report = _tried(report, target, settings, progress)
    return replace(report, findings=diagnose(report))


def _less(settings: Settings) -> tuple[str, ...]:
    """Return what has to be said of what is not read."""
    notes: tuple[str, ...] = ()
    if settings.layers_only:
        notes += (
            "layers only: operations inside modules were not measured, so less can be found and placed",
        )
    return notes + ((words(settings.sample),) if settings.sample else ())


def _tried(report: Report, target: Target, settings: Settings, progress: Progress) -> Report:
    """Return the report with what re-runs of the first step say."""
    step = Step(target.model, target.batch(0), target.loss)
    progress("re-running")
    if target.optimizer is not None:
        report = replace(report, updates=lost_updates(step, target.optimizer, target.after_step))
    report = Advisor(report, Lab(step), progress).advise(settings.budget)
    if target.optimizer is not None:
        told = group_sentences(report, target.model, target.optimizer)
        report = replace(report, advice=(*report.advice, *told))
    if report.plan is not None:
        kinds = {module.path: module.kind for module in report.reference.modules}
        report = replace(report, patch=written(report.plan, target.file, kinds))
    if settings.verify_steps and report.plan is not None:
        progress(f"training {settings.verify_steps} steps")
        course = Course(target.model, target.batch, target.loss, target.optimizer, target.after_step)
        verdict = trained(course, report.plan, settings.verify_steps)
        report = replace(report, verdicts=(*report.verdicts, verdict))
    return report


def _prepare(target: Target) -> tuple[str, ...]:
    """Return what has to be said of the model before it is run."""
    shaped = shape_lazy_parameters(Step(target.model, target.batch(0), target.loss))
    names = compiled(target.model)
    notes: tuple[str, ...] = ()
    if shaped:
        notes += (f"a first run gave {shaped} lazy modules their shape",)
    if names:
        notes += (
            f"compiled parts were run eagerly, so that their operations can be seen: {', '.join(names)}",
        )
    return notes


def _steps(report: Report, target: Target, settings: Settings, progress: Progress) -> Report:
    optimizer: Any = None
    for index in range(settings.steps):
        step = Step(target.model, target.batch(index), target.loss)
        last = index == settings.steps - 1
        pair = _pair(report, step, settings, _labelled(progress, index, settings))
        report = pair.report
        if last or report.low.failure is not None:
            return report
        pair.after.restore()
        with users_code():
            optimizer = optimizer or _optimizer(target)
            _advance(target, optimizer, pair.grads)
    return report


def _labelled(progress: Progress, index: int, settings: Settings) -> Progress:
    """Return a progress that says which of several steps it is."""
    if settings.steps == 1:
        return progress
    return lambda text: progress(f"{text}, step {index + 1} of {settings.steps}")


@dataclass(slots=True)
class _Pair:
    """The report with one more step in it, and where the FP32 run left the model."""

    report: Report
    after: Snapshot
    grads: list[torch.Tensor | None]


def _pair(report: Report, step: Step, settings: Settings, progress: Progress) -> _Pair:
    """Run one step twice from the same state and add what was seen to the report."""
    before = Snapshot(step.model, step.batch, step.loss)
    try:
        progress("FP32 reference")
        reference, grads, note = _reference(step, before, _recorder(settings))
        after = Snapshot(step.model, step.loss) if settings.steps > 1 else before
        scale, refused, low = _low(report, step, settings, before, progress)
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
        leaps=report.leaps or _leaps(low, reference.trace, errors, report.dtype),
        notes=tuple(dict.fromkeys(report.notes + note)),
    )
    return _Pair(added, after, grads)


def _leaps(low: _Run, reference: Trace, errors: Mapping[Site, PairError], dtype: str) -> tuple[Leap, ...]:
    """Return where errors begin: first the casts that the numbers do not fit."""
    return (*overflown_casts(low.sources, low.trace, reference, dtype), *leaps(low.sources, errors, dtype))


def _reference(
    step: Step, before: Snapshot, make: Make
) -> tuple[_Run, list[torch.Tensor | None], tuple[str, ...]]:
    """Run the step in FP32; return the run, its gradients and what is to be said of it.

    Parameters stored in half precision are held in FP32 meanwhile, unless the model does not run that way.
    """
    widened = Widened(step.model, step.batch)
    note: tuple[str, ...] = ()
    try:
        run = _record(step, None, 0, make)
    except StepRaised as raised:
        before.restore()
        if not widened or raised.out_of_memory:
            raise
        run = _record(step, None, 0, make)
        note = (
            f"the reference keeps half-precision parameters, since with FP32 ones the model raises: {raised}",
        )
        return run, gradients(step.model), note
    grads = gradients(step.model)
    widened.narrow()
    return run, grads, note


def _low(
    report: Report, step: Step, settings: Settings, before: Snapshot, progress: Progress
) -> tuple[int, tuple[int, ...], _Run]:
    """Run the step in low precision, at a smaller scale where the gradients overflow, as GradScaler does."""
    scale = report.log2_scale
    refused: tuple[int, ...] = ()
    while True:
        progress(f"{settings.precision} at loss scale 2^{scale}")
        before.restore()
        try:
            low = _record(step, _DTYPES[settings.precision], scale, _recorder(settings))
        except StepRaised as raised:
            if raised.out_of_memory:
                raise
            return scale, refused, _Run(Trace(failure=raised.failure), Fetched({}, {}, {}, ()), {})
        overflowed = low.trace.steps[0].nonfinite and _finite(low.fetched.losses[0])
        if not overflowed or settings.log2_scale is not None or scale == 0 or settings.precision == "bf16":
            return scale, refused, low
        refused += (scale,)
        scale -= 1


def _recorder(settings: Settings) -> Make:
    kind = LayerRecorder if settings.layers_only else Recorder
    return partial(kind, samples=SAMPLES, most=settings.sample, execute=execute)


def _finite(value: float) -> bool:
    return value - value == 0.0


def _record(step: Step, dtype: torch.dtype | None, log2_scale: int, make: Make) -> _Run:
    recorder = make(step.model)
    run(step, recorder, dtype, log2_scale)
    fetched = recorder.fetch()
    trace = recorder.trace(fetched)
    low = str(dtype).removeprefix("torch.")
    summary = StepSummary(
        loss=fetched.losses[0],
        log2_scale=log2_scale,
        grad_amax=_amax(trace, lambda site: site.phase is Phase.BACKWARD and site.dtype == low),
        nonfinite=any(s.nonfinite for site, s in trace.sites.items() if site.slot.startswith("param_grad")),
    )
    return _Run(replace(trace, steps=(summary,)), fetched, recorder.sources())


def _amax(trace: Trace, wanted: Callable[[Site], bool]) -> float:
    return max((stats.amax for site, stats in trace.sites.items() if wanted(site)), default=0.0)


def _first_scale(settings: Settings) -> int:
    if settings.log2_scale is not None:
        return settings.log2_scale
    return DEFAULT_LOG2_SCALE if settings.precision == "fp16" else 0


def _optimizer(target: Target) -> torch.optim.Optimizer:
    if target.optimizer is not None:
        return target.optimizer(target.model)
    return torch.optim.AdamW([parameter for _, _, parameter in named_parameters(target.model)])


def _advance(target: Target, optimizer: torch.optim.Optimizer, grads: list[torch.Tensor | None]) -> None:
    """Update the weights with the reference's gradients, so that both precisions see the same next step."""
    set_gradients(target.model, grads)
    optimizer.step()
    clear_gradients(target.model)
    if target.after_step is not None:
        target.after_step(target.model)


def _environment(model: Any, settings: Settings) -> dict[str, str]:
    device = Step(model, None, lambda *_: None).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": name,
        "casting": "CUDA's rules on CPU tensors" if device.type == "cpu" else f"autocast of {device.type}",
        "kernel": "compiled" if Arena("cpu").native() else "torch operations",
    } | ({"sampled": f"{settings.sample} elements a tensor"} if settings.sample else {})
