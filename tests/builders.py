"""Reports made by hand: statistics from lists of floats, by brute force, and the runs that they add up to."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ampcheck.findings import Finding, Severity
from ampcheck.formats import BY_DTYPE, Format
from ampcheck.report import Report
from ampcheck.stats import HUGE_EXPONENT, TINY_EXPONENT, TensorStats
from ampcheck.trace import Cast, CastCount, ModuleInfo, PairError, Phase, Site, StepSummary, Trace

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


def record(step: Step, layer: Layer, phase: Phase, values: list[float]) -> None:
    """Add an operation's result to both runs: exact to the reference, scaled and rounded to the other."""
    scale = 2.0**step.log2_scale if phase is Phase.BACKWARD else 1.0
    fmt = BY_DTYPE[layer.dtype]
    op = layer.op if phase is Phase.FORWARD else f"{layer.op}_backward"
    site = Site(layer.path, op, "output", phase, layer.dtype, "model.py", layer.line)
    step.reference[replace(site, dtype="float32")] = stats(values)
    actual = [rounded(v * scale, fmt) for v in values]
    step.low[site] = stats(actual)
    if phase is Phase.FORWARD:
        step.errors[site] = pair_error(values, actual)


def pair_error(reference: Sequence[float], actual: Sequence[float]) -> PairError:
    """Return the sums over pairs, by their definition."""
    pairs = [(r, x) for r, x in zip(reference, actual, strict=True) if math.isfinite(r) and math.isfinite(x)]
    return PairError(
        sampled=len(reference),
        live=sum(r != 0 for r in reference),
        lost=sum(r != 0 and x == 0 for r, x in zip(reference, actual, strict=True)),
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
        record(step, layer, Phase.FORWARD, magnitudes(f"a {layer.path!a}", layer.activation, layer.spread))
        cast = Cast(layer.path, "float32", layer.dtype, Phase.FORWARD, "model.py", layer.line)
        if layer.casts:
            size = layer.casts * layer.parameters
            step.casts[cast] = CastCount(layer.casts, size, 2 * size, layer.round_trips)
    for layer in reversed(layers):
        record(step, layer, Phase.BACKWARD, magnitudes(f"g {layer.path!a}", layer.gradient, layer.spread))
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
    return replace(made, **changes)  # type: ignore[arg-type]


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
        "38 % of the gradient elements are flushed to zero at loss scale 2^8; 2^18 keeps all but 0.1 %",
        (origin,),
        {"flushed_fraction": 0.38, "suggested_log2_scale": 18.0},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def cnn() -> list[Layer]:
    """Return the layers of a small, healthy convolutional network."""
    layers = [
        Layer("stem.conv", "Conv2d", "convolution", activation=0, gradient=-14, line=12, parameters=9408),
        Layer("stem.bn", "BatchNorm2d", "batch_norm", "float32", gradient=-14, casts=0, line=13),
        Layer("stem.relu", "ReLU", "relu", gradient=-15, casts=0, line=14),
    ]
    for index in range(4):
        at = 20 + 6 * index
        name = f"blocks.{index}"
        layers += [
            Layer(f"{name}.conv1", "Conv2d", "convolution", gradient=-16 - index, line=at, parameters=36864),
            Layer(
                f"{name}.conv2", "Conv2d", "convolution", gradient=-15 - index, line=at + 1, parameters=73728
            ),
        ]
    layers.append(Layer("head", "Linear", "addmm", activation=1, gradient=-11, line=52, parameters=10240))
    layers.append(Layer("", "Net", "nll_loss", "float32", gradient=-9, casts=1, round_trips=1, line=60))
    return layers


def clean() -> Report:
    """Return a report without trouble."""
    return report(cnn(), notes=("mode: train; 1 batch of 8",))


def forward_overflow() -> Report:
    """Return a report in which attention scores exceed fp16 and the operations after them inherit it."""
    layers = cnn()
    layers[5] = replace(
        layers[5], path="blocks.1.attn", kind="Attention", op="bmm", activation=14.5, spread=1.2
    )
    made = report(layers)
    broken = [site for site in made.low.sites if site.module in ("blocks.1.attn", "blocks.1.conv2", "head")]
    poisoned = {
        site: replace(held, nans=held.nonzero, counts=(), lowest=0)
        if site in broken and site.module != "blocks.1.attn"
        else held
        for site, held in made.low.sites.items()
    }
    origin = broken[0]
    low = replace(made.low, sites=poisoned)
    over = made.low.sites[origin].nonfinite
    worst = finding(
        origin,
        "AMP101",
        name="forward-overflow",
        kind="forward-overflow",
        severity=Severity.ERROR,
        message=f"{over} of {ELEMENTS:,} elements exceed 65504, the largest number of fp16; it starts here",
        sites=tuple(broken),
        numbers={"amax": 131000.0, "elements": float(over)},
    )
    return replace(made, low=low, findings=(worst,))


def gradient_underflow() -> Report:
    """Return a report of a run at a loss scale too small for its gradients."""
    layers = [replace(layer, gradient=layer.gradient - 14) for layer in cnn()]
    made = report(layers, log2_scale=4)
    origin = next(s for s in made.low.sites if s.module == "blocks.3.conv1" and s.phase is Phase.BACKWARD)
    return replace(made, findings=(finding(origin, severity=Severity.ERROR),))


def stand_in_loss() -> Report:
    """Return a report whose loss is not the user's, with things that were not audited."""
    made = report(cnn()[:5], target="torchvision:resnet18", stand_in_loss=True, refused_scales=(24, 20))
    missed = {"tensors of type SparseTensor, layout torch.sparse_coo": 2, "torch.compile: run eagerly": 1}
    return replace(
        made, low=replace(made.low, not_audited=missed), notes=("loss: mean square of the output",)
    )


def bf16() -> Report:
    """Return a report in bf16, where no loss scale is needed."""
    layers = [
        replace(layer, dtype="bfloat16" if layer.dtype == "float16" else layer.dtype) for layer in cnn()
    ]
    return report(layers, log2_scale=0)


def many_layers() -> Report:
    """Return a report of 60 layers in a stack, a few of them losing gradients."""
    names = ("attention.query", "attention.key", "attention.output", "ffn.in", "ffn.out")
    layers = [
        Layer(
            f"model.encoder.layers.{index // 5}.{names[index % 5]}",
            gradient=-35.5 if index in (7, 31) else -20 - index / 12,
            line=100 + index % 5,
            parameters=1 << 20,
        )
        for index in range(60)
    ]
    return report(layers, log2_scale=10)


NASTY = (
    "[bold red]markup[/]",
    "\x1b[31mansi\x1b[0m",
    "line\nbreak\r\ttab",
    "bidi\u202eevil",
    "wide 表示名 モデル",
    "</script><script>alert(1)</script>",
    "a" * 300,
    ".".join(["very", "deeply", "nested"] * 12),
    "[/]",
    "\udc80 lone surrogate",
    "%0A::error::injected",
)


def nasty() -> Report:
    """Return a report whose every name comes from someone hostile."""
    made = report([Layer(name, name, name, line=index) for index, name in enumerate(NASTY)])
    origins = list(made.low.sites)
    findings = tuple(
        finding(replace(site, file=site.module), message=site.module, name=site.module, code=site.module[:20])
        for site in origins[: len(NASTY)]
    )
    texts = {name: index for index, name in enumerate(NASTY)}
    return replace(
        made,
        target=NASTY[0] + NASTY[2],
        findings=findings,
        low=replace(made.low, not_audited=texts),
        notes=NASTY,
        environment={name: name for name in NASTY} | {"device": NASTY[1]},
    )


def empty() -> Report:
    """Return a report of a step in which nothing was recorded."""
    return Report("model.py", "fp16", 16, Trace(), Trace())


#: The reports that every renderer is shown.
REPORTS: dict[str, Callable[[], Report]] = {
    "clean": clean,
    "forward_overflow": forward_overflow,
    "gradient_underflow": gradient_underflow,
    "stand_in_loss": stand_in_loss,
    "bf16": bf16,
    "many_layers": many_layers,
    "nasty": nasty,
    "empty": empty,
}
