"""Weights and sums that are held in half precision where autocast would hold them in FP32."""

from collections.abc import Iterator

from ampcheck.diagnose.rules.framework_terms import weights_in_fp32
from ampcheck.diagnose.rules.loop_state import first_place, loop_of, refused
from ampcheck.diagnose.rules.rounding import precision_loss
from ampcheck.diagnose.rules.updates import lost_updates
from ampcheck.diagnose.suspects import healthy_forward
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import BY_DTYPE, HALVES
from ampcheck.values.loop import Kind
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import count, percent, plural

_GRADIENT = "param_grad["
#: Operations that add or multiply up many elements.
_REDUCTIONS = frozenset(
    """sum mean prod cumsum cumprod logcumsumexp logsumexp norm linalg_vector_norm var std var_mean std_mean nansum
    dist index_add scatter_add scatter_reduce index_reduce""".split()
)
#: Epsilons of the format by which a result of one rounding may be off; a few more come with its inputs.
_ROUNDED_ONCE = 4.0
#: How many times the error of the results before it a reduction must show to be called its cause.
_ADDED = 4.0


def half_precision_parameters(report: Report) -> list[Finding]:
    """Parameters that are trained are stored in half precision.

    What it finds: parameters whose gradients are float16 or bfloat16, because model.half(), model.to(dtype) or a
    checkpoint made them so. Frozen ones are left out.

    Why it matters: autocast wants FP32 weights and casts them itself. Updates below half a unit in the last place
    are lost, and torch.amp.GradScaler refuses float16 gradients when it unscales them ("Attempting to unscale
    FP16 gradients").

    What to do: build or load the model in FP32 and leave the casting to autocast.

    Example: AutoModel.from_pretrained(name, torch_dtype=torch.float16), then training with a GradScaler.

    When to ignore it: when the optimizer keeps FP32 copies of its own where this was not seen.
    """
    numels = report.low.numels()
    sites = [
        site
        for site in numels
        if site.phase is Phase.STATE and site.slot.startswith(_GRADIENT) and site.dtype in HALVES
    ]
    if not sites or lost_updates(report) or _steps_copies(report):
        return []
    elements = sum(numels[site] for site in sites)
    file, line = first_place(report, "model")
    first = sites[0]._replace(file=file, line=line) if file else sites[0]
    half = any(site.dtype == "float16" for site in sites)
    ended = half and refused(loop_of(report)) is not None and not loop_of(report).count(Kind.UPDATE)
    why = f"; GradScaler refuses their float16 gradients{', and the script ended there' if ended else ''}"
    return [
        Finding(
            "AMP302",
            "half-precision-parameters",
            "half-precision-parameters",
            Severity.ERROR if ended else Severity.WARNING if half else Severity.INFO,
            f"{plural(len(sites), 'trained parameter')} ({count(elements)} elements) are stored in "
            f"{' and '.join(sorted({site.dtype for site in sites}))}{why if half else ''}",
            (first, *sites[1:]),
            {"parameters": len(sites), "elements": elements},
            fix=weights_in_fp32(report),
        )
    ]


def _steps_copies(report: Report) -> bool:
    """Tell whether all that is updated is in FP32: copies of the weights, as DeepSpeed and apex O2 keep them."""
    things = report.loop.things if report.loop is not None else ()
    dtypes = {str(thing.settings["dtypes"]) for thing in things if "dtypes" in thing.settings}
    return bool(dtypes) and not any(half in words.split() for words in dtypes for half in HALVES)


def half_precision_reduction(report: Report) -> list[Finding]:
    """A loss or a long sum is computed in half precision, and it shows.

    What it finds: reductions (sum, mean, norm, cumsum, scatter_add, ...) with a half-precision result that is
    off by more than the format's rounding, and by four times as much as any result before it.
    A loss that is held in half precision as a whole is reported as information.

    Why it matters: terms that are small beside the sum so far are rounded away one by one, and a loss in bf16 has
    two to three decimal digits: progress below that is not seen.

    What to do: sum in FP32, x.sum(dtype=torch.float32) or x.float().mean(); keep the loss under autocast, which
    runs sums and losses in FP32, instead of switching it off there.

    Example: counting 10,000 ones into a float16 tensor with index_add_, which stops at 2048.

    When to ignore it: when the sum is only logged.
    """
    said = {site for finding in precision_loss(report) for site in finding.sites}
    found = [site for site in _far_off(report) if site not in said]
    if found:
        return [_reduction(report, found)]
    loss = _half_loss(report)
    return [] if loss is None else [loss]


def _far_off(report: Report) -> Iterator[Site]:
    known = 0.0
    for site, pair in report.errors.items() if healthy_forward(report) else ():
        if site.phase is not Phase.FORWARD or not site.op:
            continue
        error, before = pair.relative_rms, known
        known = max(error, known)
        if site.op.rstrip("_") not in _REDUCTIONS or site.dtype not in HALVES or pair.nonfinite:
            continue
        if error > max(_ROUNDED_ONCE * BY_DTYPE[site.dtype].epsilon, _ADDED * before):
            yield site


def _reduction(report: Report, sites: list[Site]) -> Finding:
    first = sites[0]
    error = report.errors[first].relative_rms
    epsilon = BY_DTYPE[first.dtype].epsilon
    return Finding(
        "AMP502",
        "half-precision-reduction",
        "precision-loss",
        Severity.WARNING,
        f"{first.op} in {first.module or 'the root or the loss'} adds up in {first.dtype} and is off by "
        f"{percent(error)}, {error / epsilon:.0f} times the format's rounding",
        tuple(sites),
        {"error": error, "epsilon": epsilon, "places": len(sites)},
    )


def _half_loss(report: Report) -> Finding | None:
    """Return what is to be said of a loss that is itself a half-precision number."""
    step = report.low.steps[-1] if report.low.steps else None
    held = [
        site
        for site, stats in report.low.sites.items()
        if site.phase is Phase.FORWARD and site.op and site.dtype in HALVES
        if step is not None and stats.nonzero == stats.numel == 1 and stats.amax == abs(step.loss)
    ]
    if not held or step is None:
        return None
    digits = "3 to 4" if held[-1].dtype == "float16" else "2 to 3"
    return Finding(
        "AMP502",
        "half-precision-reduction",
        "half-precision-loss",
        Severity.INFO,
        f"the loss is a {held[-1].dtype} number, with {digits} decimal digits",
        (held[-1],),
        {"loss": step.loss},
    )


def scaler_useless(report: Report) -> list[Finding]:
    """A loss scale is used in bf16, where it heals nothing.

    What it finds: an audit in bf16 that was asked for with a loss scale (--scale), as a GradScaler would set it.

    Why it matters: bf16 has the exponents of FP32, so a scale keeps no gradient from zero; it costs a pass over all
    gradients, a wait for the device each step, and skipped steps where scaled gradients exceed the range.

    What to do: train in bf16 without a GradScaler, or construct it with enabled=False.

    Example: a script that switches from fp16 to bf16 and keeps its scaler.

    When to ignore it: where gradients below 2^-133 matter, which only bf16's subnormals would hold.
    """
    if report.precision != "bf16" or report.log2_scale == 0:
        return []
    message = (
        f"a loss scale of 2^{report.log2_scale} is used in bf16, which has the range of FP32 and needs none"
    )
    numbers = {"log2_scale": report.log2_scale}
    scaled = Site("", "", "output", Phase.BACKWARD, report.dtype, *first_place(report, "scaler"))
    fix = ('scaler = torch.amp.GradScaler("cuda", enabled=False)  # bf16 needs no loss scale',)
    return [
        Finding(
            *("AMP205", "scaler-useless", "scaler-useless", Severity.WARNING, message, (scaled,), numbers),
            fix=fix if report.loop else (),
        )
    ]
