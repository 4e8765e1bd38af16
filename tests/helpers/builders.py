"""Reports made by hand: statistics from lists of floats, by brute force, and the runs that they add up to."""

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ampcheck.diagnose.verdict import judged, judged_by_trace
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import BY_DTYPE, Format
from ampcheck.values.report import Report
from ampcheck.values.stats import HUGE_EXPONENT, TINY_EXPONENT, TensorStats
from ampcheck.values.trace import Cast, CastCount, ModuleInfo, PairError, Phase, Site, StepSummary, Trace
from ampcheck.values.verdict import NOT_JUDGED, Health

ELEMENTS = 1500


def stats(values: Sequence[float]) -> TensorStats:
    """Return the statistics of some floats, one element at a time."""
    counts: dict[int, int] = {}
    finite = [v for v in values if math.isfinite(v)]
    for value in finite:
        if value:
            exponent = min(max(math.frexp(value)[1] - 1, TINY_EXPONENT), HUGE_EXPONENT)
            counts[exponent] = counts.get(exponent, 0) + 1
    return TensorStats.from_counts(
        counts,
        zeros=sum(v == 0 for v in finite),
        infs=sum(math.isinf(v) for v in values),
        nans=sum(math.isnan(v) for v in values),
        amax=max(map(abs, finite), default=0.0),
        sum_squares=math.fsum(v * v for v in finite),
    )


def rounded(value: float, fmt: Format) -> float:
    """Return a float rounded to nearest even in a format: the definition, by exact arithmetic on doubles."""
    if not math.isfinite(value) or value == 0:
        return value
    exponent = max(math.frexp(value)[1] - 1, fmt.min_exponent)
    quantum = 2.0 ** (exponent - fmt.precision + 1)
    result = round(value / quantum) * quantum
    if abs(result) <= fmt.max:
        return math.copysign(result, value)
    return math.copysign(math.inf, value) if fmt.has_inf else math.nan


@dataclass(frozen=True)
class Layer:
    """A module with one operation: where its activations and gradients lie, as powers of two."""

    path: str
    kind: str = "Linear"
    op: str = "addmm"
    dtype: str = "float16"
    activation: float = -1.0  #: log2 of the typical magnitude
    gradient: float = -18.0  #: log2 of the typical magnitude before scaling
    spread: float = 2.0  #: standard deviation of the log2
    casts: int = 1
    round_trips: int = 0
    line: int = 0
    parameters: int = 4096


@dataclass
class Step:
    """Both runs of a step being filled in."""

    log2_scale: int
    reference: dict[Site, TensorStats] = field(default_factory=dict)
    low: dict[Site, TensorStats] = field(default_factory=dict)
    casts: dict[Cast, CastCount] = field(default_factory=dict)
    errors: dict[Site, PairError] = field(default_factory=dict)


def magnitudes(seed: str, center: float, spread: float, zeros: float = 0.2) -> list[float]:
    """Return log-normal floats around 2**center, some of them exactly zero, the same for the same seed."""
    draw = random.Random(seed)
    return [
        0.0 if draw.random() < zeros else draw.choice((-1, 1)) * 2.0 ** draw.gauss(center, spread)
        for _ in range(ELEMENTS)
    ]


def record(step: Step, layer: Layer, phase: Phase) -> None:
    """Add an operation's result to both runs: exact to the reference, scaled and rounded to the other."""
    forward = phase is Phase.FORWARD
    op = layer.op if forward else f"{layer.op}_backward"
    site = Site(layer.path, op, "output", phase, layer.dtype, "model.py", layer.line)
    seed, center = ("a", layer.activation) if forward else ("g", layer.gradient)
    exact, low, error = both_runs(
        f"{seed} {layer.path!a}", center, layer.spread, 0 if forward else step.log2_scale, layer.dtype
    )
    step.reference[site._replace(dtype="float32")] = exact
    step.low[site] = low
    if forward:
        step.errors[site] = error


@functools.cache
def both_runs(
    seed: str, center: float, spread: float, log2_scale: int, dtype: str
) -> tuple[TensorStats, TensorStats, PairError]:
    """Return what both runs hold of some floats, and what lies between them; the same reports are made many times."""
    values = magnitudes(seed, center, spread)
    actual = [rounded(v * 2.0**log2_scale, BY_DTYPE[dtype]) for v in values]
    return stats(values), stats(actual), pair_error(values, actual)


def pair_error(reference: Sequence[float], actual: Sequence[float]) -> PairError:
    """Return the sums over pairs, by their definition."""
    pairs = [(r, x) for r, x in zip(reference, actual, strict=True) if math.isfinite(r) and math.isfinite(x)]
    return PairError(
        sampled=len(reference),
        live=sum(r != 0 for r, _ in pairs),
        lost=sum(r != 0 and x == 0 for r, x in pairs),
        error_squares=math.fsum((x - r) ** 2 for r, x in pairs),
        error_sum=math.fsum(x - r for r, x in pairs),
        reference_squares=math.fsum(r * r for r, _ in pairs),
        cross=math.fsum(x * r for r, x in pairs),
        nonfinite=len(reference) - len(pairs),
    )


def report(layers: Sequence[Layer], log2_scale: int = 16, **changes: object) -> Report:
    """Return the report of a step of some layers, run forward in order and backward in reverse."""
    step = Step(log2_scale)
    for layer in layers:
        record(step, layer, Phase.FORWARD)
        cast = Cast(layer.path, "float32", layer.dtype, Phase.FORWARD, "model.py", layer.line)
        if layer.casts:
            size = layer.casts * layer.parameters
            step.casts[cast] = CastCount(layer.casts, size, 2 * size, layer.round_trips)
    for layer in reversed(layers):
        record(step, layer, Phase.BACKWARD)
    modules = tuple(ModuleInfo(layer.path, layer.kind, 1, (), layer.parameters) for layer in layers)
    precision = "bf16" if any(layer.dtype == "bfloat16" for layer in layers) else "fp16"
    made = Report(
        target="model.py",
        precision=precision,
        log2_scale=log2_scale,
        reference=Trace(step.reference, {}, (summary(step.reference, 0),), modules, {}, 60, 2 * len(layers)),
        low=Trace(step.low, step.casts, (summary(step.low, log2_scale),), modules, {}, 70, 2 * len(layers)),
        errors=step.errors,
        environment={"device": "cpu", "torch": "2.15.0", "python": "3.11.9"},
    )
    return judged_by_trace(replace(made, **changes))  # type: ignore[arg-type]


def repeated(made: Report, times: int) -> Report:
    """Return a report with every module so many times, under numbered parents: large ones are slow to make by hand."""

    def again(trace: Trace) -> Trace:
        modules = [replace(m, path=f"{n}.{m.path}") for n in range(times) for m in trace.modules]
        sites = {
            site._replace(module=f"{n}.{site.module}"): held
            for phase in (Phase.FORWARD, Phase.BACKWARD)
            for n in range(times)
            for site, held in trace.sites.items()
            if site.phase is phase
        }
        return replace(trace, sites=sites, modules=tuple(modules))

    return replace(made, reference=again(made.reference), low=again(made.low), errors={})


def summary(sites: dict[Site, TensorStats], log2_scale: int) -> StepSummary:
    """Return the summary of a run made by hand."""
    backward = [held for site, held in sites.items() if site.phase is Phase.BACKWARD]
    amax = max((held.amax for held in backward), default=0.0)
    return StepSummary(0.6931, log2_scale, amax, any(held.nonfinite for held in backward))


def finding(origin: Site, code: str = "AMP201", **changes: object) -> Finding:
    """Return a finding at a site."""
    made = Finding(
        code,
        "gradient-underflow",
        "grad-underflow",
        Severity.WARNING,
        "38 % of the gradient elements underflow at loss scale 2^8; 2^18 keeps all but 0.1 %",
        (origin,),
        {"underflowed_fraction": 0.38, "suggested_log2_scale": 18.0},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def answer(report: Report) -> tuple[Health, str]:
    """Return the verdict on a report as it is now: its word and its sentence."""
    made = judged_by_trace(report) if report.verdict == NOT_JUDGED else judged(report)
    return made.verdict.word, made.verdict.sentence


def sentence_of(report: Report) -> str:
    """Return the sentence of the verdict."""
    return answer(report)[1]
