"""Which of several things that went wrong explains the others."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ampcheck.diagnose.rules.backward import gradient_read, reads_gradient
from ampcheck.diagnose.rules.leading import first_ones_first, followed_by, leads_to, led_below
from ampcheck.diagnose.scaling.gradients import gradient_tensors
from ampcheck.diagnose.scaling.rounding import relevant, underflow_share
from ampcheck.diagnose.suspects import Suspect
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import Kind
from ampcheck.values.outcome import HARM_ERROR, HARM_UNDERFLOW
from ampcheck.values.report import Report, by_place
from ampcheck.values.trace import LEAP_ERROR, LEAP_FACTOR, ErrorJump, Phase, Site
from ampcheck.values.wording import clean, location

#: What can be wrong by itself and break what comes after it, in the order of execution.
_CAUSES = (
    "AMP418",
    "AMP416",
    "AMP408",
    "AMP105",
    "AMP505",
    "AMP101",
    "AMP103",
    "AMP501",
    "AMP104",
    "AMP407",
    "AMP206",
    "AMP202",
)
#: Why gradients overflow that are no larger than fp16 holds, or at a scale that should have fallen.
_OF_OVERFLOW = frozenset({"AMP104", "AMP407", "AMP206"})
#: Where gradients are not divided by the scale that has multiplied them, or by another one.
_OF_SCALES = frozenset({"AMP418", "AMP416", "AMP408"})
#: What changes gradients between the backward and the optimizer.
_ON_THE_WAY = frozenset({"AMP401", "AMP403", "AMP404", "AMP408", "AMP416", "AMP418", "AMP419"})
#: What makes gradients that are not finite at any loss scale.
_MAKES_NAN = frozenset({"AMP101", "AMP103", "AMP104"})
#: What may only follow from one of these.
_FOLLOWERS = frozenset({"AMP202", "AMP203", "AMP506"})
#: What may make infinite numbers finite.
_TO_FINITE = frozenset({"nan_to_num", "where", "masked_fill", "index_put", "clamp"})
#: What casting stored numbers explains, and what follows from it.
_OF_CAST = frozenset({"AMP105", "AMP505"})
_BY_CAST = frozenset({"AMP101", "AMP103", "AMP501"})


def by_cause(report: Report, found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with those that one cause explains listed below it instead of beside it."""
    findings = _by_state(report, _named_rather(_hidden_there(report, tuple(found))))
    findings = led_below(report, first_ones_first(report, _after_updates(report, findings)))
    errors = [f for code in _CAUSES for f in findings if (f.code, f.severity) == (code, Severity.ERROR)]
    errors = [
        f for f in errors if f.code != "AMP206" or f.numbers.get("lowest", 1.0) >= 1
    ]  # else it follows itself
    all_errors = [f for f in findings if f.severity is Severity.ERROR]
    errors = [f for f in errors if not any(leads_to(report, other, f) for other in all_errors)]
    if not errors:
        return findings
    cause = errors[0]
    followers = _FOLLOWERS | ({"AMP501"} if cause.code in {"AMP202", *_OF_OVERFLOW} else set())
    if cause.code in _OF_CAST:
        followers = _BY_CAST
    if cause.code in _OF_SCALES:
        zeros = cause.code == "AMP408" or _returns_zeros(report, cause)
        followers = frozenset({"AMP501", "AMP506"} | ({"AMP201"} if zeros else set()))
    below = [f for f in findings if f is not cause and f.code in followers and _explains(report, cause, f)]
    collapses = [f for f in findings if f.code == "AMP206"]
    below += [f for f in collapses if _makes_infinite(cause, f) or _skips_for(report, cause, f)]
    shown = followed_by(cause, below)
    if cause.code in _OF_SCALES | _OF_OVERFLOW:  # before the collapse of the scale, which is what it leads to
        findings = (cause, *(f for f in findings if f is not cause))
    return tuple(shown if f is cause else f for f in findings if f not in below)


def _hidden_there(report: Report, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return findings with gradients that overflow named where a line behind the backward makes them finite."""
    over = next((f for f in findings if _overflows(report, f)), None)
    behind = _behind_backward(report)
    hides = next((site for site in behind if _makes_finite(report, site)), None)
    skips = report.loop is not None and any(event.skipped for event in report.loop.scales)
    if over is None or hides is None or (skips and over.code == "AMP202"):
        return findings
    what = "them" if over.code == "AMP403" else "it"
    says = f"{over.message}; {clean(hides.op)} here makes {what} finite, so that no step is skipped"
    named = replace(over, message=says, sites=(hides, *over.sites))
    if over.fix:  # a check behind it would find nothing
        then = "a step whose gradients overflow must be skipped, and the scale halved"
        last = f"# and without {clean(hides.op)} here: {then}"
        named = replace(named, fix=(*over.fix, last))
    lost = [f for f in findings if f.code == "AMP501" and f.origin in behind]
    return tuple(named if f is over else f for f in findings if f not in lost)


def _overflows(report: Report, found: Finding) -> bool:
    """Tell whether an error is on gradients that overflow, or on a step with such gradients."""
    settled = report.outcomes.get("settled")
    stepped = found.code == "AMP403" and settled is not None and bool(settled.grads_nonfinite)
    return found.severity is Severity.ERROR and (stepped or found.code == "AMP202")


def _makes_finite(report: Report, site: Site) -> bool:
    """Tell whether an operation may make numbers finite, and gives something else than in FP32, or nothing but zeros.

    A mask is the script's decision: FP32 is given the same, and shows no error.
    """
    pair = report.errors.get(site)
    off = pair is not None and (
        pair.relative_rms > HARM_ERROR or (pair.sampled > 0 and not pair.reference_squares)
    )
    return off and site.op.rstrip("_") in _TO_FINITE and not report.low.sites[site].nonfinite


def _behind_backward(report: Report) -> list[Site]:
    """Return the operations that come behind the whole backward."""
    order = list(report.low.sites)
    last = max((at for at, one in enumerate(order) if one.phase is Phase.BACKWARD), default=len(order))
    return [site for site in order[last + 1 :] if site.op]


def _named_rather(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return findings without gradients that change on their way, where it is known what changes them."""
    named = any(f.code in _ON_THE_WAY and f.severity is Severity.ERROR for f in findings)
    return tuple(f for f in findings if f.code != "AMP421") if named else findings


def _makes_infinite(cause: Finding, collapse: Finding) -> bool:
    """Tell whether a loss scale falls for what one line makes infinite, which a finding is about already."""
    if cause.code not in {"AMP104", "AMP202"} or cause.origin is None or collapse.origin is None:
        return False
    return bool(cause.origin.line) and cause.origin.location == collapse.origin.location


def _by_state(report: Report, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return findings with gradients that are off somewhere below a state that has lost its changes at a known line.

    The state comes first as well where it is known at which line they begin to be off: it may be what makes them so,
    and what an optimizer adds to a weight in vain is lost whatever the gradients are.
    """
    off = [f for f in findings if f.code == "AMP501" and not (f.origin and f.origin.line)]
    lost = [f for f in findings if (f.code, f.severity) == ("AMP504", Severity.ERROR)]
    first = next((f for f in lost if f.origin and f.origin.line), None)
    begun = {f.origin.location for f in findings if f.code == "AMP501" and f.origin}
    written = {location(loss.file, loss.line) for loss in report.updates if loss.line}
    here = first.origin.location if first is not None and first.origin is not None else ""
    elsewhere = (here in written or _moves_in_vain(report, first)) and bool(begun - {here})
    if report.loop is None or first is None or not (off or elsewhere):
        return findings
    shown = followed_by(first, off)
    return (shown, *(f for f in findings if f is not first and f not in off))


def _moves_in_vain(report: Report, lost: Finding | None) -> bool:
    """Tell whether it is a weight whose changes by an optimizer are rounded away."""
    site = lost.sites[0] if lost is not None else None
    return site is not None and any(
        loss.stepped and loss.stuck > loss.wrong and _is_param(site, loss.name) for loss in report.updates
    )


def _is_param(site: Site, name: str) -> bool:
    """Tell whether a place is that of a parameter."""
    module, _, leaf = name.rpartition(".")
    return (site.module, site.slot) == (module, f"param[{leaf}]")


def _after_updates(report: Report, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return findings with what an optimizer's own states have done to the weights before what those weights do."""
    kinds = {f"{thing.kind}.state" for thing in report.loop.things} if report.loop is not None else set()
    first = [f for f in findings if f.code == "AMP504" and f.sites[0].module in kinds]
    return (*first, *(f for f in findings if f not in first))


def _explains(report: Report, cause: Finding, follower: Finding) -> bool:
    """Tell whether one place causes both: promoting it heals all, or both begin in the same module."""
    # What is wrong in the step is what it leaves behind. That no scale fits is the same said of scales, and nothing
    # healed what came before.
    if cause.code == "AMP408" and follower.code != "AMP201" and follower.origin and follower.origin.line:
        # Else it begins elsewhere.
        read = gradient_read(report)
        zeros = _returns_zeros(report, cause) or (read is not None and read.dropped == follower.origin)
        return follower.origin.phase is Phase.BACKWARD and zeros
    if follower.code == "AMP506" or cause.code in _OF_SCALES | _OF_OVERFLOW | {"AMP202"}:
        return True
    if cause.code in _OF_CAST:
        return _only_the_cast(report)
    if cause.origin is None or follower.origin is None:
        return False
    places = list(_planned(report))
    if len(places) == 1:
        return places[0].holds(cause.origin) or not any(places[0].holds(site) for site in follower.sites[:1])
    return any(site.module == cause.origin.module for site in follower.sites)


def _returns_zeros(report: Report, cause: Finding) -> bool:
    """Tell whether a finding is on gradients that autograd.grad returns and that are zero for the most part."""
    events = () if report.loop is None else report.loop.sequence(1)
    zeros = {event.name for _, event in events if event.kind in {Kind.LOST_GRAD, Kind.RETURNED_ZEROS}}
    return cause.origin is not None and cause.origin.location in zeros


def _skips_for(report: Report, cause: Finding, follower: Finding) -> bool:
    """Tell whether steps are skipped for what another finding has: they have no line but a backward's."""
    events = () if report.loop is None else report.loop.sequence(1)
    lines = {event.location for _, event in events if event.kind is Kind.BACKWARD}
    known = follower.origin is not None and follower.origin.location in lines
    return cause.code in _MAKES_NAN and known and not follower.fix


def _only_the_cast(report: Report) -> bool:
    """Tell whether nothing but stored numbers and inputs that the cast ruins had to be kept in FP32."""
    owners = {one.name.rpartition(".")[0] for one in report.stored if one.kind != "input"}
    return report.plan is not None and set(report.plan.fp32_modules) <= owners


def _planned(report: Report) -> Iterator[Suspect]:
    planned = report.outcomes.get("planned")
    if report.plan is not None and planned is not None and not planned.harmed:
        yield from (Suspect(module=name) for name in report.plan.fp32_modules)
        yield from (Suspect(line=line) for line in report.plan.fp32_lines)


def underflowed(report: Report, jump: ErrorJump) -> bool:
    """Tell whether an error begins because most of a result is too small for the format.

    Zeros out of a difference of nearly equal numbers are not that: in FP32 they are large enough.
    """
    if reads_gradient(jump):
        return False
    reference = by_place(report.reference)
    held = [reference.get(site.place) for site in (jump.site, jump.dropped) if site.dtype == report.dtype]
    return any(
        stats is not None and 2 * stats.underflowed(report.format).low > stats.nonzero > 0 for stats in held
    )


def begun_by_rounding(report: Report) -> list[ErrorJump]:
    """Return where rounding begins to show, nothing where a result that was underflowed before explains it."""
    begun = [jump for jump in report.error_jumps if not underflowed(report, jump)]
    before = report.error_jumps[: report.error_jumps.index(begun[0])] if begun else ()
    return [] if any(jump.error > HARM_ERROR for jump in before) else _largest_first(begun)


def _largest_first(begun: list[ErrorJump]) -> list[ErrorJump]:
    """Return jumps in order of execution, but one of many times the first one's error, of right numbers, before it."""
    far = [
        jump for jump in begun if jump.error > LEAP_FACTOR * begun[0].error and jump.error_before < LEAP_ERROR
    ]
    return [*far[:1], *(jump for jump in begun if jump not in far[:1])]


def lost_in_forward(report: Report) -> bool:
    """Tell whether zeros among the gradients come from rounding before the backward, not from underflow.

    FP32 says what is too small at a scale; if nothing is and the forward has gone wrong, that explains the rest.
    """
    if not begun_by_rounding(report):
        return False
    tensors = relevant(gradient_tensors(report)).values()
    scale = report.log2_scale
    return not any(underflow_share(stats, report.format, scale) > HARM_UNDERFLOW for stats in tensors)
