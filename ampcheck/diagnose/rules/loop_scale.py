"""What the loss scale does over the steps of a training loop."""

from bisect import bisect_left

from ampcheck.diagnose.rules.gradients import no_scale_fits
from ampcheck.diagnose.rules.loop_by_hand import never_stepped, scale_in_half
from ampcheck.diagnose.rules.loop_state import device_of, line_of, loop_finding, loop_of, stay_infinite
from ampcheck.diagnose.rules.makers import casts_at, made_in_fp32, maker_of
from ampcheck.diagnose.rules.regions import in_fp32_but_for_modules
from ampcheck.diagnose.rules.scale_lines import gives_scale, lowered_by, made, multiplied_by_hand, updated
from ampcheck.diagnose.rules.scalers_anew import made_again
from ampcheck.diagnose.rules.scales_tried import fitting, overflows_all_along
from ampcheck.diagnose.suspects import recomputed_lower
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import HALVES
from ampcheck.values.loop import Cause, Event, Kind, Loop, ScaleEvent
from ampcheck.values.maker import LOWERS_SCALE
from ampcheck.values.op_kinds import CASTS, rounds_inputs
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import clean, location, plural, scale_words, some

#: Attempts of which all were skipped that say something; GradScaler's first scale is often a few octaves too high.
FEW = 4
#: Skipped steps after which a scale that halves has come down from all that a float32 loss can be multiplied by.
MANY = 32
#: Part of the steps behind the first growth of the scale that is skipped where it grows too often, and far too often.
OFTEN, TOO_OFTEN = 1 / 20, 1 / 4
#: Part of the steps that a script leaves out at a scale of its own: up to here one that never grows is what is wrong,
#: from here on one that does not fall.
OFTEN_BY_HAND = 1 / 8


def scale_collapse(report: Report) -> list[Finding]:
    """The loss scale falls without end, or no step is taken at all.

    What it finds: a scale that has fallen below 1 and has not come to rest there (no more steps have been taken since
    the last skip than were skipped), loops whose last four steps at least were all skipped, and scales that grow into
    the next overflow so often that a twentieth of the steps is skipped: an error from a quarter on, or where parameters
    have gradients in skipped steps only. And a scale that comes down so slowly that more than 32 steps, and more than
    were taken, are skipped. A scale that the script keeps by hand is judged by the steps that the script then leaves
    out: where it never changes, or falls no further, an eighth of them is an error: they are of one kind, as a rule,
    which is never learned from.

    Why it matters: the scaler halves its scale at each overflow. Where gradients are only large, it comes to rest; it
    goes on falling where they are not finite at any scale: a NaN or an inf comes from the forward or from the data, or
    the gradients span more than float16 holds. Every skipped step is a step that trains nothing.

    What to do: look at the operation named. Lines to paste are shown where it is half precision that made it infinite.
    Where FP32 has the same inf or NaN, keep the line away from it. Where the scale stays although steps are skipped,
    the script's own update() must lower it, and torch's must not be given a scale.

    Example: a log of zero in the loss: its gradient is NaN, whatever it is multiplied by.

    When to ignore it: when the loop is so short that the scale is still on its way down from its first value.
    """
    loop = loop_of(report)
    again = {label for labels in made_again(loop).values() for label in labels[1:]}  # said by AMP417
    found = list[Finding]()
    for label, first in loop.first_scales.items():
        events = [event for event in loop.scales if event.scaler == label]
        lowest = min((event.after for event in events), default=first)
        never = loop.settled(label) is None and len(events) >= FEW
        falls = lowest < min(1.0, first) and not _rests(loop, events)
        stands = _left_out(loop, label, events) > OFTEN
        if falls or never or stands or _ends_in_skips(loop, label) or _wastes(loop, events):
            one: Finding | None = _collapse(report, label, events, lowest)
        else:
            one = _grows_too_often(loop, label, events)
        if one is not None and (label not in again or one.severity is Severity.ERROR):
            found.append(one)
    return _once_a_line(found) if found else [*never_stepped(report, loop)]


def _once_a_line(found: list[Finding]) -> list[Finding]:
    """Return the first finding at each line: a script may make one scaler after the other there."""
    once: dict[tuple[str, Severity], Finding] = {}
    for at, one in enumerate(found):
        line = one.origin.location if one.origin is not None and one.origin.line else str(at)
        once.setdefault((line, one.severity), one)
    return list(once.values())


def _grows_too_often(loop: Loop, label: str, events: list[ScaleEvent]) -> Finding | None:
    """Return a finding on a scale that grows again and again to where gradients overflow."""
    grown = next((at for at, event in enumerate(events) if event.after > event.before), None)
    if grown is None:
        return None
    ends = loop.updates(label)
    first = bisect_left(ends, events[grown].step)
    steps, skips = len(ends) - first, sum(at >= first for at in loop.skips(label))
    if not ends:  # by hand
        before = sum(event.skipped for event in events[:grown])
        steps, skips = loop.count(Kind.BACKWARD) - before, sum(event.skipped for event in events[grown:])
    never, times = loop.untrained, sum(event.after > event.before for event in events)
    if skips < FEW or (skips < OFTEN * steps and not never):
        return None
    return loop_finding(
        "AMP206 scale-collapse",
        Severity.ERROR if skips > TOO_OFTEN * steps or never else Severity.WARNING,
        f"{skips} of {plural(steps, 'step' if ends else 'backward')} are skipped: the loss scale grew {times:,} "
        f"times, each time until gradients overflow again{f', and nothing trains {some(never, 1)}' if never else ''}",
        [made(loop, label)],
        [
            'scaler = torch.amp.GradScaler("cuda")  # its growth_interval is 2000: one step in 2,000 is skipped'
        ],
        {"skipped": skips, "lowest": min(event.after for event in events), "grown": times},
    )


def _ends_in_skips(loop: Loop, label: str) -> bool:
    """Tell whether a loop that trained for a while ends in skipped steps."""
    updates, skips = len(loop.updates(label)), set(loop.skips(label))
    if updates:
        return updates >= FEW and all(at in skips for at in range(updates - FEW, updates))
    last = [event for event in loop.scales if event.scaler == label][-FEW:]  # by hand, after the last step
    return len(last) == FEW and all(event.skipped and event.step >= loop.steps - 1 for event in last)


def _wastes(loop: Loop, events: list[ScaleEvent]) -> bool:
    """Tell whether more steps were skipped than taken, and more than any scale needs to come to rest."""
    return sum(event.skipped for event in events) > max(MANY, loop.count(Kind.STEP))


def _left_out(loop: Loop, label: str, events: list[ScaleEvent]) -> float:
    """Return the part of the steps that a script leaves out at a scale of its own that never changes, or no more."""
    last = max((at + 1 for at, event in enumerate(events) if event.after != event.before), default=0)
    skips = sum(event.skipped for event in events[last:])
    if loop.thing(label) is not None or not skips:
        return 0.0
    taken = loop.steps - (events[last - 1].step if last else 0)
    return skips / (taken + skips)


def _rests(loop: Loop, events: list[ScaleEvent]) -> bool:
    """Tell whether more steps were taken since the last skip than were skipped before it."""
    skips = [event.step for event in events if event.skipped]
    return bool(skips) and loop.steps - 1 - skips[-1] > len(skips)


def _collapse(report: Report, label: str, events: list[ScaleEvent], lowest: float) -> Finding:
    loop = loop_of(report)
    skips = [event for event in events if event.skipped]
    lowest_first = sorted(skips, key=lambda event: event.before)
    known = [event for event in (*_last_in_a_row(skips), *lowest_first) if event.cause and event.cause.file]
    told_of = next(iter([*known, *skips]), None)
    cause = told_of.cause if told_of else None
    fits = "; no scale fits (AMP203)" if no_scale_fits(report) else ""
    stays = _stays(loop, label, events)
    kept = stay_infinite(loop)
    if kept:
        why = "; the gradients of a skipped step are not cleared, so they stay infinite"
        fix = [f"{line_of(loop, Kind.ZERO_GRAD, 'optimizer.zero_grad()')}  # where a step is skipped, too"]
        places = kept[:1]
    elif loop.thing(label) is None and _only_falls(loop, events):
        why = "; it never grows again, although most steps are taken"
        fix = ["# after some hundred steps without a skip, double the scale again"]
        places = multiplied_by_hand(loop)[:1]
    elif not skips:
        why, fix = "", ["# lower the scale only where a step was skipped, as torch's own update() does"]
        places = [lowered_by(loop, label) or updated(report, label)]
    else:
        half = _carried_half(report, cause)
        why, fix = f"{_why(cause, half)}{fits}", _kept_in_fp32(report, cause, half)
        places = [_place(report, label, told_of)]
    if stays:
        places, why, fix = scale_in_half(report, events) or (
            [updated(report, label)],
            why,
            _lowered(report, label),
        )
    seldom = 0.0 < _left_out(loop, label, events) <= OFTEN_BY_HAND and loop.settled(label) is not None
    fell = f"fell from {scale_words(loop.first_scales[label])} to {scale_words(lowest)}"
    of = f" of {steps}" if (steps := loop.count(Kind.SCALER_STEP)) else ""
    for_skips = (
        f"{plural(len(skips), 'step')}{of} skipped" if skips else "the script lowers it without a skip"
    )
    return loop_finding(
        "AMP206 scale-collapse",
        Severity.ERROR
        if lowest < 1 or (stays and not seldom) or kept or _wastes(loop, events)
        else Severity.WARNING,
        f"the loss scale {stays or fell}: {for_skips}{why}",
        places,
        fix,
        {"skipped": len(skips), "lowest": lowest},
    )


def _only_falls(loop: Loop, events: list[ScaleEvent]) -> bool:
    """Tell whether a scale falls here and there and never grows: what skips a step is soon over."""
    grows = any(event.after > event.before for event in events)
    return not grows and sum(event.skipped for event in events) < OFTEN_BY_HAND * loop.steps


def _carried_half(report: Report, cause: Cause | None) -> str:
    """Return the half precision of numbers that are not finite in FP32 either, so that a step before made them so.

    It is '' where they are no half precision, or this step made them so.
    """
    if cause is None or not (cause.given and cause.op):
        return ""
    same = (
        site
        for site in report.low.sites
        if (site.op, site.file, site.line) == (cause.op, cause.file, cause.line)
    )
    return next((site.dtype for site in same if site.dtype in HALVES), "")


def _why(cause: Cause | None, half: str = "") -> str:
    """Return where a gradient that is not finite comes from, as part of a sentence."""
    if cause is None:
        return ""
    if cause.given and not cause.op:
        return f"; the input of {clean(cause.given)} is not finite already"
    found = f"; the gradient of {clean(cause.parameter)} is not finite" if cause.parameter else ""
    begins = f", which begins in {clean(cause.op)}" if cause.op else ""
    before = ", in FP32 too: an earlier step or the data brought it" if cause.given else ""
    if before and half:
        changes = "changes" if cause.op.endswith("_") else "gives"
        before = (
            f", which {changes} {half} numbers that may have overflowed in an earlier step: keep them in FP32"
        )
    return f"{found}{begins}{before}"


def _last_in_a_row(skips: list[ScaleEvent]) -> list[ScaleEvent]:
    """Return the skips at the end that follow each other: those before them have settled the scale."""
    at = len(skips)
    while at > 1 and skips[at - 1].step - skips[at - 2].step <= 1:
        at -= 1
    return skips[max(0, at - 1) :]


def _stays(loop: Loop, label: str, events: list[ScaleEvent]) -> str:
    """Return what to say of a scale that skipped steps do not lower, or no further; '' where they do."""
    last = events[-FEW:]
    moves = any(event.after != event.before for event in last)
    trains = (
        loop.settled(label) is not None and not _wastes(loop, events) and not _left_out(loop, label, events)
    )
    if trains or moves or not last[-1].after:  # torch's own halving ends at 0
        return ""
    thing = loop.thing(label)
    whose = "the script" if thing is None else "update()"
    whose = f"{clean(thing.kind)}.update()" if thing and thing.kind != "GradScaler" else whose
    lowers = "does not lower it further" if len({event.after for event in events}) > 1 else "never lowers it"
    return f"stays at {scale_words(last[-1].after)}, {whose} {lowers}"


def _lowered(report: Report, label: str) -> list[str]:
    """Return the lines of a scaler that lowers its scale, or how far the script must lower its own."""
    thing = loop_of(report).thing(label)
    fits = max(fitting(report), default=None)
    if thing is None and fits is not None:
        falls = maker_of(report, LOWERS_SCALE)
        at = f"{falls.location}: " if falls is not None else ""
        further = " further" if len({event.after for event in loop_of(report).scales}) > 1 else ""
        then = f": 2.0**{fits} is predicted to fit" if fits < report.log2_scale else ""
        return [f"# {at}halve the scale{further} where a step is skipped{then}"]
    if thing is None:
        return []
    if thing.kind == "GradScaler":
        says = ["# update() without a scale here: it halves the scale when a step was skipped"]
        return says if gives_scale(loop_of(report), label) else []
    return [
        f"class {clean(thing.kind)}(torch.amp.GradScaler):",
        "    ...  # without update() of its own: torch's halves the scale when a step was skipped",
    ]


def _kept_in_fp32(report: Report, cause: Cause | None, half: str = "") -> list[str]:
    """Return the lines that keep in FP32 what half precision made infinite; none where that was not seen."""
    if cause is None or recomputed_lower(report):
        return []
    here = location(cause.file, cause.line)
    if cause.op in CASTS and casts_at(cause.file, cause.line):
        return ["# this line, without the cast to half precision"]
    if half and cause.op.endswith("_"):
        return [made_in_fp32(report, here)]
    whole = any(one.path.startswith(f"{cause.place}.") for one in report.low.modules)
    region = f"with torch.autocast({device_of(report)}, enabled=False):"
    if half or whole or cause.place == here or overflows_all_along(report, here):
        module = "" if cause.place == here else cause.place
        origin = Site(module, cause.op, "output", Phase.FORWARD, half, cause.file, cause.line)
        split = () if rounds_inputs(cause.op) else in_fp32_but_for_modules(report, origin)
        return [*split] or [region, "    ...  # this line, with .float() on what is read"]
    backwards = {event.location for _, event in loop_of(report).sequence(1) if event.kind is Kind.BACKWARD}
    if not cause.place or cause.place in backwards:  # which computes nothing
        return []
    return [region, f"    ...  # {clean(cause.place)} in FP32: its inputs as .float(), and no .half() within"]


def _place(report: Report, label: str, event: ScaleEvent | None) -> Event:
    """Return the line behind a skipped step, or where the scaler was made, or a scale by hand falls."""
    loop = loop_of(report)
    cause = event.cause if event else None
    if cause is not None and cause.file:
        return Event(Kind.BACKWARD, label, cause.op, file=cause.file, line=cause.line)
    return updated(report, label) if loop.thing(label) is None else made(loop, label)
