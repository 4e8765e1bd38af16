"""The audit: a target's steps run in pairs, compared, and judged."""

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ampcheck.formats import FORMATS
from ampcheck.observe.book import Fetched
from ampcheck.observe.measure import Arena
from ampcheck.observe.pair import SAMPLES, pair_errors
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.state import Snapshot
from ampcheck.observe.step import Step, StepRaised, clear_gradients, gradients, run, widen
from ampcheck.observe.wide import execute
from ampcheck.report import Report
from ampcheck.rules import diagnose
from ampcheck.settings import Settings
from ampcheck.stats import TensorStats
from ampcheck.targets.spec import Target
from ampcheck.trace import Failure, PairError, Phase, Site, StepSummary, Trace, add_maps

#: Where GradScaler starts.
DEFAULT_LOG2_SCALE = 16
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

Progress = Callable[[str], None]


@dataclass(slots=True)
class _Run:
    """One recorded step."""

    trace: Trace
    fetched: Fetched


def audit(target: Target, settings: Settings, progress: Progress = lambda _: None) -> Report:
    """Run the paired steps of a target and report what low precision does to them."""
    report = Report(
        target.name,
        settings.precision,
        log2_scale=_first_scale(settings),
        reference=Trace(),
        low=Trace(),
        stand_in_loss=target.stand_in_loss,
        notes=target.notes,
        environment=_environment(target.model),
    )
    optimizer: Any = None
    with target.active():
        for index in range(settings.steps):
            step = Step(target.model, target.batch(index), target.loss)
            last = index == settings.steps - 1
            report, grads = _pair(report, step, settings, lambda text, i=index: progress(_label(text, i, settings)))
            if not last and report.low.failure is None:
                optimizer = optimizer or _optimizer(target)
                _advance(target, optimizer, grads)
    return replace(report, findings=diagnose(report))


def _label(text: str, index: int, settings: Settings) -> str:
    return f"{text}, step {index + 1} of {settings.steps}" if settings.steps > 1 else text


def _pair(report: Report, step: Step, settings: Settings, progress: Progress) -> tuple[Report, Any]:
    """Run one step twice from the same state and add what was seen to the report."""
    before = Snapshot(step.model, step.batch)
    try:
        progress("FP32 reference")
        widen(step.model)
        reference = _record(step, None, 0)
        grads = gradients(step.model)
        scale, refused, low = _low(report, step, settings, reference, before, progress)
    finally:
        before.restore()
    errors: dict[Site, PairError] = {}
    if low.trace.failure is None:
        errors = pair_errors(reference.fetched, low.fetched, scale)
    return replace(
        report,
        log2_scale=scale,
        refused_scales=report.refused_scales + refused,
        reference=report.reference + reference.trace,
        low=report.low + low.trace,
        errors=add_maps(report.errors, errors),
    ), grads


def _low(
    report: Report, step: Step, settings: Settings, reference: _Run, before: Snapshot, progress: Progress
) -> tuple[int, tuple[int, ...], _Run]:
    """Run the step in low precision, at a smaller scale where the gradients overflow, as GradScaler does."""
    scale = report.log2_scale
    refused: tuple[int, ...] = ()
    while True:
        progress(f"{settings.precision} at loss scale 2^{scale}")
        before.restore()
        try:
            low = _record(step, _DTYPES[settings.precision], scale)
        except StepRaised as raised:
            return scale, refused, _Run(Trace(failure=raised.failure), Fetched({}, {}, {}, ()))
        overflowed = low.trace.steps[0].nonfinite and _finite(low.fetched.losses[0])
        if not overflowed or settings.log2_scale is not None or scale == 0 or settings.precision == "bf16":
            return scale, refused, low
        refused += (scale,)
        scale -= 1


def _finite(value: float) -> bool:
    return value - value == 0.0


def _record(step: Step, dtype: torch.dtype | None, log2_scale: int) -> _Run:
    recorder = Recorder(step.model, samples=SAMPLES, execute=execute)
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
    return _Run(replace(trace, steps=(summary,)), fetched)


def _amax(trace: Trace, wanted: Callable[[Site], bool]) -> float:
    return max((stats.amax for site, stats in trace.sites.items() if wanted(site)), default=0.0)


def _first_scale(settings: Settings) -> int:
    if settings.log2_scale is not None:
        return settings.log2_scale
    return DEFAULT_LOG2_SCALE if settings.precision == "fp16" else 0


def _optimizer(target: Target) -> torch.optim.Optimizer:
    if target.optimizer is not None:
        return target.optimizer(target.model)
    return torch.optim.AdamW(target.model.parameters())


def _advance(target: Target, optimizer: torch.optim.Optimizer, grads: list[torch.Tensor | None]) -> None:
    """Update the weights with the reference's gradients, so that both precisions see the same next step."""
    for parameter, grad in zip(target.model.parameters(), grads, strict=True):
        parameter.grad = None if grad is None else grad.to(parameter.dtype)
    optimizer.step()
    clear_gradients(target.model)
    if target.after_step is not None:
        target.after_step(target.model)


def _environment(model: Any) -> dict[str, str]:
    device = Step(model, None, lambda *_: None).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": name,
        "casting": "CUDA's rules on CPU tensors" if device.type == "cpu" else f"autocast of {device.type}",
        "kernel": "compiled" if Arena("cpu").native else "torch operations",
    }
