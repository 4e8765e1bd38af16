"""A dry run: what autocast makes of a step's dtypes, without values, memory or an accelerator."""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ampcheck.diagnose.gaps import of_trace
from ampcheck.diagnose.rules import RULES, WITHOUT_VALUES
from ampcheck.diagnose.verdict import diagnosed
from ampcheck.errors import AmpcheckError, ConfigError, StepError
from ampcheck.observe.dry import DryRecorder
from ampcheck.observe.dtypes import DTYPES
from ampcheck.observe.model.faking import fake_tensors, hold_fakes
from ampcheck.observe.model.structure import named_parameters
from ampcheck.observe.step import Step, StepRaised, Widened, run
from ampcheck.targets import Options, load
from ampcheck.targets.seeding import seeded
from ampcheck.targets.spec import Target
from ampcheck.values.report import Report
from ampcheck.values.settings import Settings
from ampcheck.values.trace import Trace

#: What torch raises where a value is asked for that a fake tensor does not have.
_ASKED_FOR_VALUES = ("DataDependentOutputException", "DynamicOutputShapeException")
_NOTE = (
    "dry run: one step on tensors with a shape and a dtype but no values; ampcheck checked dtypes, casts and "
    "constants in the code, and tried no fix"
)
_NOT_ASKED = "rules that need values: ranges, gradients, loss scale, rounding, training loop"


def dry_audit(
    spec: str, options: Options, settings: Settings, progress: Callable[[str], None] = lambda _: None
) -> Report:
    """Load a target without memory, run one step of it without values, and report dtypes and casts."""
    if settings.precision not in DTYPES:
        raise ConfigError(
            f"expected a precision of {' or '.join(DTYPES)} for a dry run, got {settings.precision!r}; "
            "choosing one needs values"
        )
    if options.weights is not None:
        raise ConfigError("--dry and --weights: a dry run reads no values; leave one of them out")
    with seeded(options.seed), fake_tensors() as faking, _explained():
        target = load(spec, replace(options, device="cpu", dry=True))
        with target.active():
            progress(f"{settings.precision}, dry")
            batch = hold_fakes(target.model, target.batch(0), faking)
            low = _low(Step(target.model, batch, target.loss), settings)
    report = Report(
        target.name,
        settings.precision,
        log2_scale=settings.first_log2_scale,
        reference=Trace(),
        low=low,
        stand_in_loss=target.stand_in_loss,
        notes=(_NOTE, *target.notes),
        environment=_environment(target),
    )
    return diagnosed(report, of_trace(report))


def _low(step: Step, settings: Settings) -> Trace:
    """Return the trace of the step in low precision; what FP32 raises too is raised."""
    recorder = DryRecorder(step.model)
    try:
        run(step, recorder, DTYPES[settings.precision], settings.first_log2_scale)
    except StepRaised as raised:
        if raised.failure.kind in _ASKED_FOR_VALUES:
            raise
        Widened(step.model, step.batch)
        run(step, DryRecorder(step.model), None)
        return replace(_trace(recorder), failure=raised.failure)
    return _trace(recorder)


def _trace(recorder: DryRecorder) -> Trace:
    trace = recorder.trace(recorder.fetch())
    not_audited = {_NOT_ASKED: len(RULES.keys() - WITHOUT_VALUES), **trace.not_audited}
    return replace(trace, elements=recorder.elements(), not_audited=not_audited)


@contextmanager
def _explained() -> Iterator[None]:
    """Say what to do where the user's code wants a value."""
    try:
        yield
    except AmpcheckError as error:
        if not any(kind in str(error) for kind in _ASKED_FOR_VALUES):
            raise
        raise StepError(
            "the code reads a computed value, and a dry run has none",
            where=error.where,
            hint="leave --dry out",
        ) from error


def _environment(target: Target) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": "none (dry)",
        "casting": "CUDA's rules on fake CPU tensors",
        "parameters": f"{sum(held.numel() for _, _, held in named_parameters(target.model)):,}",
    }
