"""Gradients that low precision cannot hold, and what a loss scale does for them."""

from ampcheck.diagnose.rules import first_places
from ampcheck.diagnose.rules.backward import makes_zeros, saving_cast
from ampcheck.diagnose.rules.causes import lost_in_forward
from ampcheck.diagnose.rules.first_places import at_the_scale, first_flushed
from ampcheck.diagnose.rules.hidden import at_what_hides, hidden_by
from ampcheck.diagnose.rules.loop_order import step_beside_scaler
from ampcheck.diagnose.rules.makers import maker_of
from ampcheck.diagnose.rules.scales_tried import (
    divided_in_half,
    fitting,
    found_below,
    larger_scale,
    over_in_loop,
    overflowing,
    predicted_scale,
)
from ampcheck.diagnose.scaling.gradients import gradient_tensors
from ampcheck.diagnose.scaling.window import ScaleLimits, scale_window
from ampcheck.diagnose.suspects import healthy_forward, hidden_overflow, newly_nonfinite, origin_first
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import HALVES
from ampcheck.values.maker import LOWERS_SCALE
from ampcheck.values.outcome import HARM_UNDERFLOW, Outcome
from ampcheck.values.report import Report, by_place
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import percent, plural, power

#: Share of what matters in each gradient of a part that must be lost for it to count as not learning at all.
SILENT_SHARE = 0.9
#: Skipped steps at the start from which on the default scale is called wrong for a model: GradScaler is built
#: to skip a few, and then to find its scale.
MANY_SKIPS = 4
#: Skipped steps from which on the default scale is called an error where nobody chose it: it is 64 times too large.
FAR_OFF_SKIPS = 6


def gradient_underflow(report: Report) -> list[Finding]:
    """Gradients that matter become zero in low precision at the loss scale in use.

    What it finds: steps in which more than 15 % of the gradient elements that matter (at least 1 % of their
    tensor's RMS) become zero, because they are too small for the format at the loss scale that a GradScaler
    settles at, or in bf16, which has none.

    Why it matters: what became zero is not learned from; training slows down or stops without any message.

    What to do: keep the named place in FP32; use bf16, whose range is that of FP32; or raise the loss where it is
    divided by a large number. Where a larger scale would do, the finding names it.

    Example: a branch behind a gate of 1e-6 beside one with ordinary gradients.

    When to ignore it: when the loss is a stand-in, since gradient magnitudes are then not yours.
    """
    settled = report.outcomes.get("settled")
    if settled is None or not healthy_forward(report) or not settled.finite:
        return []
    if settled.underflow <= HARM_UNDERFLOW or lost_in_forward(report):
        return []
    rescaled = report.outcomes.get("rescaled")
    remedy = "no loss scale tried heals it" if settled.log2_scale else ""
    remedy = predicted_scale(report, settled) if report.loop is not None else remedy
    if rescaled is not None:
        remedy = f"a loss scale of 2^{rescaled.log2_scale} heals it"
    if divided_in_half(report, settled):
        remedy = "these float16 gradients are divided by the scale in place: keep the weights in FP32"
    return [_underflow(report, settled, "AMP201", remedy)]


def scaler_missing(report: Report) -> list[Finding]:
    """Without a GradScaler the step does not train in fp16; with one it does.

    What it finds: a step whose gradients are those of FP32 at the loss scale in use, and of which more than 15 %
    of the elements that matter become zero when the same step is run without a scale; or at least 90 % of those
    of every parameter of one of the parts that the model is made of, such as a head.

    Why it matters: code that leaves the GradScaler out, or calls loss.backward() beside it, learns from the rest
    only, without any message.

    What to do: scale the loss with torch.amp.GradScaler("cuda") and step through it; start from the scale named.

    Example: a loss averaged over many elements, whose gradients are below 2^-24.

    When to ignore it: when your loop has a GradScaler already; when the loss is a stand-in, since gradient
    magnitudes are then not yours.
    """
    settled, unscaled = report.outcomes.get("settled"), report.outcomes.get("unscaled")
    if settled is None or unscaled is None or not healthy_forward(report):
        return []
    if settled.harmed or not unscaled.finite:
        return []
    if unscaled.underflow <= HARM_UNDERFLOW and not _silent(report, settled, unscaled):
        return []
    return [_underflow(report, unscaled, "AMP204", f"with a loss scale of 2^{report.log2_scale} it does not")]


def _silent(report: Report, settled: Outcome, unscaled: Outcome) -> bool:
    """Tell whether a whole part of the model does not learn without a scale, and as in FP32 with one.

    A gradient that low precision does not reproduce at any scale is rounding noise in FP32 too, such as that of a
    bias in front of a normalisation: nothing is lost with it.
    """
    lost, kept = unscaled.underflow_by, settled.underflow_by
    return any(
        all(lost.get(name, 0.0) >= SILENT_SHARE for name in names)
        and not any(name in settled.off or kept.get(name, 0.0) > HARM_UNDERFLOW for name in names)
        for names in _parts(report)
    )


def _parts(report: Report) -> list[list[str]]:
    """Return the parameters of each of the model's largest parts: what the root holds."""
    owned: dict[str, list[str]] = {}
    for site in report.reference.sites:
        if site.module and site.slot.startswith("param_grad["):
            leaf = site.slot.removeprefix("param_grad[").removesuffix("]")
            owned.setdefault(site.module.partition(".")[0], []).append(f"{site.module}.{leaf}")
    return list(owned.values())


def _underflow(report: Report, outcome: Outcome, code: str, remedy: str) -> Finding:
    worst = _first_lost(report, outcome)
    scale = f"at loss scale 2^{outcome.log2_scale}" if outcome.log2_scale else "without a loss scale"
    if code == "AMP201" and report.loop is not None and report.loop.scaling:
        scale = "at a loss scale that is not known"
    begins = first_flushed(report, outcome.log2_scale)
    zeroed = () if begins or report.loop is None else first_places.first_zeroed(report)
    if report.loop is not None and begins and first_places.runs_backward_only(report, begins[0]):
        zeroed, begins = begins, ()
        remedy = "it begins in what this line computes in the backward: compute that in FP32"
    elif outcome.log2_scale < 0 and (shared := first_places.shared_scaler(report)):
        zeroed, remedy = (
            shared,
            "another loss has pushed the shared scale below 1: give each optimizer its own scaler",
        )
    elif outcome.log2_scale < 0 and (large := first_places.pushes_down(report)):
        zeroed, remedy = large, "a gradient too large for fp16 has pushed the scale below 1: keep it in FP32"
    elif code == "AMP201" and (small := first_places.small_scale(report)) and larger_scale(report, outcome):
        zeroed = small
    elif zeroed and zeroed[0].dtype not in HALVES:
        saved = saving_cast(report)
        zeroed = (saved, *zeroed) if saved is not None and makes_zeros(report, saved) else zeroed
        remedy = "what is saved for the backward here is zero in half precision: save it in FP32 or bf16"
    found = _parameter(report, worst), *begins
    return Finding(
        code,
        "gradient-underflow" if code == "AMP201" else "scaler-missing",
        "grad-underflow",
        _scale_severity(report) if code == "AMP204" else _underflow_severity(report),
        f"{percent(outcome.underflow)} of the gradient that matters becomes zero {scale} "
        f"({percent(outcome.underflow_by[worst])} of {worst}{_others_lost(outcome, worst)})"
        f"{'; ' if remedy else ''}{remedy}",
        (*zeroed, *sorted(found, key=lambda site: report.loop is not None and not site.line)),
        {
            "underflow": outcome.underflow,
            "log2_scale": outcome.log2_scale,
            "parameters": len(outcome.underflow_by),
        },
    )


def _others_lost(outcome: Outcome, worst: str) -> str:
    """Return how many other parameters lose as large a share as does harm."""
    others = [
        share for name, share in outcome.underflow_by.items() if name != worst and share > HARM_UNDERFLOW
    ]
    return f", up to {percent(max(others))} of {plural(len(others), 'other parameter')}" if others else ""


def _underflow_severity(report: Report) -> Severity:
    return Severity.WARNING if report.stand_in_loss else Severity.ERROR


def _scale_severity(report: Report) -> Severity:
    """Return how bad it is that another scale than the one audited does harm.

    That is an error only where nothing says which scale the user's own loss is trained with.
    """
    return Severity.ERROR if report.scaling_open and not report.stand_in_loss else Severity.WARNING


def _first_lost(report: Report, outcome: Outcome) -> str:
    """Return the parameter that the backward reaches first, among those that lose about as much as the worst."""
    most = max(outcome.underflow_by.values())
    order = {module.path: place for place, module in enumerate(report.low.modules)}
    lost = [name for name, share in outcome.underflow_by.items() if 2 * share >= most]
    return max(lost, key=lambda name: order.get(name.rpartition(".")[0], -1))


def _parameter(report: Report, name: str) -> Site:
    module, _, leaf = name.rpartition(".")
    slot = f"param_grad[{leaf}]"
    found = [site for site in report.low.sites if site.module == module and site.slot == slot]
    place = found[0] if found else Site(module, "", slot, Phase.STATE, "float32")
    used = (site for site in report.low.sites if site.module == module and site.op and site.file)
    line = next(used, None) if report.loop is not None else None
    return place if line is None else place._replace(file=line.file, line=line.line)


def gradient_overflow(report: Report) -> list[Finding]:
    """Gradients become inf or NaN in low precision although the forward was healthy.

    What it finds: backward operations whose results are finite in FP32 and not in low precision: at every
    loss scale, or at GradScaler's default of 2^16 and at least the next three below. Named first is the one that
    still overflows at the smallest of these scales.

    Why it matters: GradScaler skips such steps and halves the scale; a step that overflows at every scale never
    trains.

    What to do: start from the smaller loss scale named; where no scale is small enough, run the named module in
    FP32.

    Example: a temperature of 100 in front of a contrastive loss.

    When to ignore it: where only the first steps overflow and training code tolerates skipped steps.
    """
    settled = report.outcomes.get("settled")
    if settled is not None and (hidden := hidden_overflow(report)):
        begins = hidden if hidden[0].phase is not Phase.BACKWARD else at_the_scale(report, hidden)
        where = f"{_at_scale(report)}; {hidden_by(report)} hides that: {settled.words}"
        return [at_what_hides(report, _overflow(begins, Severity.ERROR, where, report))]
    if settled is not None and settled.grads_nonfinite and not settled.loss_nonfinite:
        reference = by_place(report.reference)
        bad = origin_first(report, newly_nonfinite(report, Phase.BACKWARD, reference), reference)
        if not bad or not healthy_forward(report):
            return []
        where = (
            f"at every loss scale down to 2^{report.log2_scale}" if report.precision == "fp16" else "in bf16"
        )
        if report.loop is not None and (report.loop.scaling or report.precision == "fp16"):
            where = _at_scale(report)
        rescaled, fits = report.outcomes.get("rescaled"), fitting(report)
        if report.loop is not None and report.precision == "fp16" and fits:
            where = over_in_loop(report, max(fits))
        if rescaled is not None:
            where = f"at loss scale 2^{report.log2_scale}; a loss scale of 2^{rescaled.log2_scale} heals it"
        found = found_below(report, settled) or _past_the_scaler(report, settled, fits)
        severity = Severity.WARNING if found else Severity.ERROR
        return [_overflow(at_the_scale(report, bad), severity, found or where, report)]
    if len(report.refused_scales) >= MANY_SKIPS:
        bad = overflowing(report, min(report.refused_scales)) or overflowing(
            report, max(report.refused_scales)
        )
        if not bad and not healthy_forward(report):
            return []  # FP32 has nothing that overflows there: it follows from the forward
        remedy = (
            f"from loss scale 2^{min(report.refused_scales)} on; a GradScaler that starts at "
            f"2^{max(report.refused_scales)} settles at 2^{report.log2_scale} after {len(report.refused_scales)} "
            "skipped steps"
        )
        # Where the step is off at the settled scale too, the model magnifies any rounding, as networks do at
        # random initialisation: the scale is then not what is wrong, and a scaler finds it by itself.
        well = settled is not None and not settled.harmed
        far_off = well and len(report.refused_scales) >= FAR_OFF_SKIPS
        return [_overflow(bad, _scale_severity(report) if far_off else Severity.WARNING, remedy, report)]
    return []


def _at_scale(report: Report) -> str:
    """Return at which loss scale the recorded step ran."""
    if report.loop is not None and report.loop.scaling:
        return "at the script's loss scale, which is unknown"
    return f"at loss scale 2^{report.log2_scale}"


def _past_the_scaler(report: Report, settled: Outcome, fits: list[int]) -> str:
    """Return what overflowed at first, where the script then put it into the weights: the rest comes of that."""
    if not fits or not any(finding.severity is Severity.ERROR for finding in step_beside_scaler(report)):
        return ""
    fit = f"{power(max(fits))} is the largest that is predicted to fit"
    then = "later overflows follow from the step that bypasses the scaler (AMP403)"
    return f"at loss scale {power(settled.log2_scale)}; {fit}; {then}"


def _overflow(bad: list[Site], severity: Severity, where: str, report: Report) -> Finding:
    place = (
        f"{bad[0].op} in the backward of {bad[0].module or 'the root or the loss'}" if bad else "the backward"
    )
    by_hand = report.loop is not None and bool(report.loop.scaling)
    lower = "# where a gradient is not finite: clear the gradients, skip the step and halve the scale, without a limit"
    if by_hand and (falls := maker_of(report, LOWERS_SCALE)) is not None:
        bad = [Site("", "", "output", Phase.BACKWARD, "float32", falls.file, falls.line), *bad]
    return Finding(
        "AMP202",
        "gradient-overflow",
        "backward-overflow",
        severity,
        f"{place} overflows {where}",
        tuple(bad),
        {"log2_scale": report.log2_scale, "refused_scales": len(report.refused_scales)},
        fix=(lower,) if by_hand else (),
    )


def no_scale_fits(report: Report) -> list[Finding]:
    """No loss scale suits all gradients: one overflows where another still underflows.

    What it finds: a gradient that overflows at every scale which another one needs (to keep 95 % of the elements
    that matter, and of the energy), predicted from the FP32 run's exponents for every scale.

    Why it matters: a GradScaler settles below the overflow, and there the other gradient does not survive.

    What to do: keep one of both places in FP32 (the one with the fewest operations costs least), or use bf16.

    Example: a branch behind a gate of 1e-9 beside a loss that is summed over pixels.

    When to ignore it: when what is lost carries little. Nothing is said if a re-run gave the gradients of FP32 all
    the same; without a re-run it is a prediction, reported as information.
    """
    settled = report.outcomes.get("settled")
    if report.precision != "fp16" or report.low.failure is not None or not healthy_forward(report):
        return []
    if settled is not None and not settled.harmed:
        return []
    window = scale_window(gradient_tensors(report), report.format)
    if window.fits or window.first_to_overflow is None or window.last_to_be_kept is None:
        return []
    limits = (window.first_to_overflow, window.last_to_be_kept)
    return [
        Finding(
            "AMP203",
            "no-scale-fits",
            "no-scale-fits",
            Severity.INFO if settled is None else Severity.WARNING,
            window.message,
            tuple(_executed(report, limit) for limit in limits),
            {
                "overflows_from": limits[0].overflows_from,
                "underflows_below": limits[1].lost_below,
                "missing_octaves": -window.octaves,
            },
        )
    ]


def _executed(report: Report, limit: ScaleLimits[Site]) -> Site:
    """Return the site of a limit with the dtype that it ran in."""
    low = (site for site in report.low.sites if site.place == limit.key and site.dtype == report.dtype)
    return next(low, limit.key)
