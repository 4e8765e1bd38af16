"""Which error leads to another one, wherever that shows."""

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from ampcheck.diagnose.rules.loop_state import active_scalers
from ampcheck.diagnose.rules.taken import sent_events
from ampcheck.values.doubts import DoubtKind
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import BY_DTYPE
from ampcheck.values.loop import RETURNED, Kind
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site

#: Errors that say the same again where the first leads to the second.
_AGAIN = frozenset(
    {
        ("AMP403", "AMP206"),
        ("AMP404", "AMP206"),
        ("AMP206", "AMP201"),
        ("AMP421", "AMP103"),
        ("AMP504", "AMP101"),
    }
)
#: What scripts take the size of gradients by, look at them with, and divide them by.
_OF_GRADIENTS = frozenset({"linalg_vector_norm", "norm", "_foreach_norm", "abs", "div_", "mul_"})


def first_ones_first(report: Report, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return findings with errors before those that they lead to."""
    errors = [f for f in findings if f.severity is Severity.ERROR]
    first = [f for f in errors if any(leads_to(report, f, other) for other in errors)]
    return (*first, *(f for f in findings if f not in first))


def led_below(report: Report, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return findings with what says the same again below the error that leads to it."""
    for cause in [f for f in findings if f.severity is Severity.ERROR]:
        below = [f for f in findings if (cause.code, f.code) in _AGAIN and leads_to(report, cause, f)]
        if below or cause.code == "AMP504":  # and what a state is after the step
            states = (f for f in findings if f.code == "AMP506")
            below += [f for f in states if all(_is_of(cause.origin, site) for site in f.sites)]
        if below:
            shown = followed_by(cause, below)
            findings = tuple(shown if f is cause else f for f in findings if f not in below)
    return findings


def followed_by(cause: Finding, below: Iterable[Finding]) -> Finding:
    """Return a finding with others listed below it."""
    return replace(cause, follows=(*cause.follows, *(f"{f.code} {f.name}: {f.message}" for f in below)))


def leads_to(report: Report, cause: Finding, other: Finding) -> bool:
    """Tell whether an error leads to another one, wherever that shows."""
    settled, shows = report.outcomes.get("settled"), other.origin
    infinite = settled is not None and bool(settled.grads_nonfinite)
    sent = cause.code == "AMP421" and bool(sent_events(report))
    begins = cause.origin
    at_line = begins is not None and bool(begins.line)
    same_line = begins is not None and shows is not None and begins.location == shows.location
    cast_up = shows is not None and (shows.op, shows.dtype) == ("_to_copy", "float32")
    leads = {
        # A loss scale that is a number in float16.
        ("AMP504", "AMP206"): _is_infinite_scale(report),
        # What is divided again and again is no part that was left multiplied.
        ("AMP404", "AMP403"): True,
        # Weights that are NaN, in all steps that come after.
        ("AMP403", "AMP206"): _is_clip(report, cause) or cause.name == "step-beside-scaler",
        ("AMP404", "AMP206"): True,  # of a backward that no check sees
        # A number that is lost makes gradients infinite at every scale, in its line.
        ("AMP104", "AMP501"): infinite,
        ("AMP104", "AMP206"): infinite,
        # At a first scale that is too large.
        ("AMP417", "AMP501"): infinite,
        ("AMP417", "AMP202"): infinite,
        # A later operation hides the overflow, and a small part has its gradient; or what is infinite is off.
        ("AMP202", "AMP501"): (settled is not None and settled.finite and bool(settled.faint))
        or (
            infinite
            and shows is not None
            and (shows.phase is Phase.BACKWARD or _is_of_gradients(report, shows))
        ),
        # At a scale that has collapsed.
        ("AMP206", "AMP201"): settled is not None and settled.log2_scale < 0 and at_line,
        # Without a scale, at no line of its own.
        ("AMP408", "AMP201"): settled is not None
        and (_scales_another(report) or (not settled.log2_scale and not (shows and shows.line))),
        # A forward with other weights than the optimizer has.
        ("AMP419", "AMP501"): True,
        # What is wrong where it arrives is what was sent.
        ("AMP421", "AMP201"): sent or _are_changed(report),
        ("AMP421", "AMP501"): sent,
        # Picks that are wrong at a known line, and gradients that are off at none.
        ("AMP510", "AMP501"): at_line and not (shows is not None and shows.line),
        # A cast up gives no infinity that was not there, and no zero.
        # Nor does a number that fits come to overflow but of what its module holds.
        ("AMP504", "AMP101"): cast_up or _holds_infinity(report, cause, other),
        ("AMP504", "AMP103"): cast_up,
        # Gradients that become zero in the line that changes them.
        ("AMP421", "AMP103"): same_line or (shows is not None and _is_of_gradients(report, shows)),
        # Gradients that begin to be off where a state has lost what was added to it.
        ("AMP504", "AMP501"): same_line and at_line,
    }
    return leads.get((cause.code, other.code), False)


def _is_infinite_scale(report: Report) -> bool:
    """Tell whether the loss scale has become infinite, as a single number in half precision has."""
    loop = report.loop
    known = loop is not None and (
        any(one.after == inf for one in loop.scales)
        or any(event.kind is Kind.NEVER_FINITE for _, event in loop.sequence(1))
    )
    return known and any(one.wrong == one.moved == 1 for one in report.updates)


def _is_of(number: Site | None, tensor: Site) -> bool:
    """Tell whether a place is that of a tensor, or of one number of it."""
    return (
        number is not None
        and number.module == tensor.module
        and number.slot.startswith(tensor.slot.removesuffix("]"))
    )


def _holds_infinity(report: Report, lost: Finding, other: Finding) -> bool:
    """Tell whether a module's result, which fits, is not finite where a state of the same module is not."""
    bad = {loss.name.rpartition(".")[0] for loss in report.updates if loss.wrong}
    begins, shows = lost.origin, other.origin
    if begins is None or shows is None or shows.dtype not in BY_DTYPE:
        return False
    fits = 0.0 < other.numbers.get("largest_fp32_value", 0.0) < BY_DTYPE[shows.dtype].max
    return fits and begins.module == shows.module and begins.module in bad


def _is_of_gradients(report: Report, shows: Site) -> bool:
    """Tell whether a place is what the script does with its gradients after the backward."""
    sites = [*report.low.sites]
    backward = next((at for at, site in enumerate(sites) if site.phase is Phase.BACKWARD), len(sites))
    return shows.op in _OF_GRADIENTS and not shows.module and shows in sites[backward:]


def _are_changed(report: Report) -> bool:
    """Tell whether gradients are right after the backward, and wrong when the optimizer is given them."""
    return any(one.kind is DoubtKind.CHANGED and one.harms for one in report.doubts)


def _is_clip(report: Report, cause: Finding) -> bool:
    """Tell whether an error is at a line that clips."""
    events = () if report.loop is None else report.loop.sequence(1)
    clips = {event.location for _, event in events if event.kind is Kind.CLIP}
    return cause.origin is not None and cause.origin.location in clips


def _scales_another(report: Report) -> bool:
    """Tell whether a scaler multiplies some of the losses whose optimizers take turns, and others are not."""
    events = () if report.loop is None else report.loop.sequence(1)
    scaled = {event.scaled for _, event in events if event.kind is Kind.BACKWARD and event.name != RETURNED}
    return len(scaled) > 1 and report.loop is not None and bool(active_scalers(report.loop))
