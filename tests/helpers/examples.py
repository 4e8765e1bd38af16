"""The example reports that every renderer is shown, healthy, ill and hostile."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from builders import ELEMENTS, Layer, finding, report

from ampcheck.compare.merge import merge
from ampcheck.diagnose.verdict import judged_by_trace
from ampcheck.values.findings import Severity
from ampcheck.values.outcome import Outcome
from ampcheck.values.plan import Claim, Plan, ScalerPlan, Tried
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Trace


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


@cache
def clean() -> Report:
    """Return a report without trouble."""
    return report(cnn(), notes=("mode: train; 1 batch of 8",))


@cache
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


@cache
def gradient_underflow() -> Report:
    """Return a report of a run at a loss scale too small for its gradients."""
    layers = [replace(layer, gradient=layer.gradient - 14) for layer in cnn()]
    made = report(layers, log2_scale=4)
    origin = next(s for s in made.low.sites if s.module == "blocks.3.conv1" and s.phase is Phase.BACKWARD)
    return replace(made, findings=(finding(origin, severity=Severity.ERROR),))


@cache
def two_ranks() -> Report:
    """Return the sum of two ranks: attention overflows on one of them, the other only loses gradients."""
    healthy = report([replace(layer, gradient=layer.gradient - 3) for layer in cnn()])
    origin = next(s for s in healthy.low.sites if s.module == "head" and s.phase is Phase.BACKWARD)
    both = {"rank0": replace(healthy, findings=(finding(origin),)), "rank1": forward_overflow()}
    return merge(both)


@cache
def planned() -> Report:
    """Return a report with a plan and what re-runs said of its claims."""
    made = forward_overflow()
    before = Outcome(16, loss_nonfinite=True)
    scaler = ScalerPlan(2.0**13, growth_interval=500)
    claims = (
        Claim(
            "keep blocks.1.attn in FP32",
            Tried.CONFIRMED,
            before.words,
            "gradient error 0.004, 0.02% of it lost",
        ),
        Claim("start from a loss scale of 2^13", Tried.CONFIRMED),
        Claim("bf16 needs none of this", Tried.REFUTED, before.words, "gradient error 0.31, none of it lost"),
        Claim("growth_interval=500", Tried.NOT_TRIED),
    )
    plan = Plan("fp16", ("blocks.1.attn",), ("model.py:60", "losses.py:7"), scaler)
    return replace(made, plan=plan, claims=claims, outcomes={"settled": before})


@cache
def stand_in_loss() -> Report:
    """Return a report whose loss is not the user's, with things that were not audited."""
    made = report(cnn()[:5], target="torchvision:resnet18", stand_in_loss=True, refused_scales=(24, 20))
    missed = {"tensors of type SparseTensor, layout torch.sparse_coo": 2, "torch.compile: run eagerly": 1}
    return replace(
        made, low=replace(made.low, not_audited=missed), notes=("loss: mean square of the output",)
    )


@cache
def bf16() -> Report:
    """Return a report in bf16, where no loss scale is needed."""
    layers = [
        replace(layer, dtype="bfloat16" if layer.dtype == "float16" else layer.dtype) for layer in cnn()
    ]
    return report(layers, log2_scale=0)


@cache
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


@cache
def nasty() -> Report:
    """Return a report whose every name comes from someone hostile."""
    made = report([Layer(name, name, name, line=index) for index, name in enumerate(NASTY)])
    origins = list(made.low.sites)
    findings = tuple(
        finding(site._replace(file=site.module), message=site.module, name=site.module, code=site.module[:20])
        for site in origins[: len(NASTY)]
    )
    texts = {name: index for index, name in enumerate(NASTY)}
    return replace(
        made,
        target=NASTY[0] + NASTY[2],
        findings=findings,
        low=replace(made.low, not_audited=texts),
        notes=NASTY,
        plan=Plan(NASTY[0], NASTY, NASTY, ScalerPlan(3.0)),
        claims=tuple(Claim(name, Tried.NOT_TRIED, name, name) for name in NASTY),
        environment={name: name for name in NASTY} | {"device": NASTY[1]},
    )


def empty() -> Report:
    """Return a report of a step in which nothing was recorded."""
    return Report("model.py", "fp16", 16, Trace(), Trace())


def _judged(make: Callable[[], Report]) -> Callable[[], Report]:
    return cache(lambda: judged_by_trace(make()))


#: The reports that every renderer is shown, each with the verdict on it.
REPORTS: dict[str, Callable[[], Report]] = {
    make.__name__: _judged(make)
    for make in (
        clean,
        forward_overflow,
        gradient_underflow,
        planned,
        two_ranks,
        stand_in_loss,
        bf16,
        many_layers,
        nasty,
        empty,
    )
}
