"""What half precision has done to a script's numbers before the step, or to its choices: FP32 cannot tell by itself."""

from dataclasses import replace
from functools import partial
from math import inf

from ampcheck.diagnose.rules.loop_state import active_scalers, device_of, loop_finding
from ampcheck.diagnose.rules.makers import held_in_fp32, maker_of
from ampcheck.values.doubts import Doubt, DoubtKind
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import HALVES
from ampcheck.values.loop import MADE_ZERO, Event, Kind
from ampcheck.values.op_kinds import CASTS
from ampcheck.values.report import Report, by_place
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import clean, location, percent, plural, some

#: What to do with a score.
_SCORED = "# the score in FP32: .float() on what it is made of, and no cast to half precision from here on"
#: Operations that pick the best elements; others give a result for each.
_OF_THE_BEST = frozenset({"argmin", "argmax", "topk", "min", "max"})


def rounded_before(report: Report) -> list[Finding]:
    """The step depends on bits that its data lost before: they were rounded to half precision.

    What it finds: numbers that a script keeps in half precision, in a replay buffer, a data set or a queue, and
    computes with. A second FP32 run gets them moved at random, by up to half a unit in the last place, which is how
    far rounding may have moved them. Its gradients differ far more than rounding the weights explains. And ids that
    become other ids, because half precision does not hold every integer.

    Why it matters: fp16 has 11 bits and bf16 has 8. Of an altitude of 8,000 m fp16 keeps steps of 4 m; the difference
    of two such numbers is rounding, and a model that is given it learns rounding. Casting up brings nothing back.

    What to do: keep these numbers in FP32; or take away what they have in common, an offset or a mean, before they are
    rounded.

    Example: prices near 19,000 kept in float16, which are multiples of 16.

    When to ignore it: when the numbers were never known better than that.
    """
    return [
        _finding(
            report,
            ("AMP509", "rounded-before", ""),
            found,
            f"{some(found.names, 2)} {'were' if len(found.names) > 1 else 'was'} rounded before the step, and the step "
            f"depends on the bits that were lost: a change of up to half a unit in the last place changes the gradient"
            f"{_where(found)} by {percent(found.error)}",
            _kept_in_fp32(report, found),
        )
        for found in _harmful(report, DoubtKind.GIVEN)
    ]


def _kept_in_fp32(report: Report, found: Doubt) -> str:
    """Return how numbers are kept in FP32: where they are made, if that is known."""
    if maker_of(report, found.names[0]) is not None:
        return held_in_fp32(report, found.names[0])
    return f"# keep {some(found.names, 2)} in FP32, or subtract what its numbers have in common before they are cast"


#: What to do where a script decides by a number that is zero.
_DECIDED = "# compute in FP32 what is compared here, and what is computed from the same numbers: no cast to half before"


def wrong_picks(report: Report) -> list[Finding]:
    """A step picks other elements than FP32 would, and its gradients are those of the wrong ones.

    What it finds: an argmin, a topk, a comparison, a search in a table or a conversion to integers that comes out
    otherwise than by FP32's own numbers, where the gradients of a second FP32 run that picks by itself differ far more
    than rounding the weights explains. And what an evaluation between the steps decides by, where that is nothing like
    FP32's numbers and a metric comes out otherwise; or where a metric overflows; or where it is a score in half
    precision that stands still while FP32's improves, and the script saves its model where the score is better; or a
    number that is off by 30 % or more where the script saves its model. And what a thread beside the training reads or
    picks, where numbers overflow that it is made of and it is nothing like FP32's.

    Why it matters: the gradients are right for what was picked, so neither the loss nor an overflow shows it: wrong
    neighbours, wrong codes of a codebook, wrong experts.

    What to do: compute what is compared, distances or scores, in FP32; where they are small differences of large
    numbers, subtract first and square then.

    Example: squared distances in fp16 of points whose coordinates are near 100: products near 10,000, in steps of 8.

    When to ignore it: when any choice will do.
    """
    region = f"with torch.autocast({device_of(report)}, enabled=False):"
    return [
        _finding(
            report,
            ("AMP510", "wrong-picks", found.names[0]),
            found,
            f"{clean(found.names[0])} {_picks(found)}: {_what_differs(found)}",
            *(
                (_DECIDED,)
                if found.by_zero
                else (
                    region,
                    "    ...  # what is compared here is computed in FP32, with .float() on what it is made of",
                )
            ),
        )
        for found in _harmful(report, DoubtKind.PICKED)
    ] + [
        _finding(
            report,
            ("AMP510", "wrong-picks", some(found.names, 1)),
            found,
            _what_is_evaluated(found),
            *((_SCORED,) if found.times else (region, "    ...  # this line, with .float() on what is read")),
        )
        for found in _harmful(report, DoubtKind.EVALUATED)
    ]


def _what_is_evaluated(found: Doubt) -> str:
    if found.times and found.error:
        return (
            f"the script keeps its best model by a number that is off by {percent(found.error)} from FP32's: what it "
            f"is made of is computed in half precision from here on"
        )
    if found.times:
        return (
            f"the script keeps its best model by a score that is computed in half precision from here on: it stands "
            f"still in {plural(found.times, 'evaluation')} in which FP32's shows a better model"
        )
    if found.overflows and found.names:
        op = clean(found.names[0])
        return (
            f"numbers overflow here, and a thread of the script's own picks by them ({op}): {percent(found.error)} of "
            "its picks are others in FP32"
        )
    if found.overflows:
        reads = "is not finite; FP32's is" if found.error == inf else "is nothing like FP32's"
        return f"numbers overflow here, and the script reads a result that {reads}"
    return (
        f"the numbers of this line are nothing like FP32's, and an evaluation decides by them "
        f"({clean(found.names[0])}): its metric is off by {percent(found.error)}"
    )


def _picks(found: Doubt) -> str:
    return "comes out otherwise than in FP32" if found.by_zero else "picks otherwise than FP32 would"


def _what_differs(found: Doubt) -> str:
    """Return what is known of FP32's picks."""
    if found.by_zero:
        return (
            "it compares a number that is 0 in float16 and not in FP32, and the script takes another branch"
        )
    if not found.overflows:
        return f"with FP32's picks the gradient{_where(found)} differs by {percent(found.error)}"
    after = "numbers have overflowed before it, and"
    if found.names[0] in _OF_THE_BEST:
        return f"{after} in FP32 its picks lose {percent(found.error)} of what the best lie above the average"
    return f"{after} {percent(found.error)} of its results are others in FP32"


def changed_gradients(report: Report) -> list[Finding]:
    """Gradients are right after the backward and wrong when the optimizer is given them.

    What it finds: what a script does with gradients on their way to the optimizer is done to FP32's gradients too,
    which are not scaled. The optimizer is given something else: far more than rounding the weights explains. And a
    line at which threads make half precision of gradients, or divide them there, before they send them to others,
    where that makes most of them infinite or zero again and again. And a line that adds something to gradients that
    are still multiplied by the loss scale, such as a decay, which is not.

    Why it matters: a clip, a norm or a filter that sees gradients times the loss scale does something else than it is
    meant to; a division in half precision turns small gradients into zero. Statistics that half precision makes lead
    a preconditioner astray. The loss and its gradients look right.

    What to do: unscale gradients in FP32, first of all, and change them then: scaler.unscale_(optimizer). Compute in
    FP32 what they are multiplied by.

    Example: a scaler whose own step() clips each parameter before torch's step() unscales it.

    When to ignore it: when what is meant is to keep only the sign, or the order, of gradients.
    """
    added = _added(report)
    return [
        _finding(
            report,
            ("AMP421", "changed-gradients", ""),
            found,
            f"the gradient{_where(found)} is right after the backward and off by {percent(found.error)} when the "
            f"optimizer is given it: {_what_changed_it(found)}",
            _what_to_do(report, found),
        )
        for found in map(partial(_where_it_is_lost, report), _harmful(report, DoubtKind.CHANGED))
        if not added
    ] + [*added, *(_sent(event) for event in sent_events(report))]


def _where_it_is_lost(report: Report, found: Doubt) -> Doubt:
    """Return a doubt with the line behind the backward that casts, or that makes a number infinite."""
    if not found.overflows:
        cast = None if found.names else _cast_on_the_way(report)
        return found if cast is None else replace(found, file=cast.file, line=cast.line)
    sites, reference = [*report.low.sites], by_place(report.reference)
    last = max((at for at, site in enumerate(sites) if site.phase is Phase.BACKWARD), default=len(sites))
    forward = (site for site in sites[last:] if site.phase is Phase.FORWARD and site.line)
    over = (one for one in forward if report.low.sites[one].nonfinite and one.place in reference)
    first = next((one for one in over if not reference[one.place].nonfinite), None)
    return found if first is None else replace(found, file=first.file, line=first.line)


def _added(report: Report) -> list[Finding]:
    """Return where something is added to gradients that hold the loss scale, and does not hold it."""
    return [
        _finding(
            report,
            ("AMP421", "changed-gradients", ""),
            found,
            "something is added here to gradients that are still multiplied by the loss scale, and it is not: dividing "
            f"by the scale leaves almost nothing of it (in FP32 it is {percent(found.error)} of the gradient)",
            "scaler.unscale_(optimizer)  # before something is added to the gradients"
            if report.loop is not None and active_scalers(report.loop)
            else "# divide the gradients by the loss scale before something is added to them",
        )
        for found in _harmful(report, DoubtKind.ADDED)
    ]


def _what_changed_it(found: Doubt) -> str:
    """Return why another gradient arrives than FP32's."""
    if found.overflows:
        return (
            "a number that this line computes from it overflows in half precision, and that makes all of it 0"
        )
    if not found.names:
        return "what is done to it in between gives something else than in FP32"
    return f"{clean(found.names[0])} is computed in half precision here, and the gradient is changed by it"


def _what_to_do(report: Report, found: Doubt) -> str:
    if found.overflows:
        return "# compute this in FP32: .float() on the gradients that it is made of, no cast of them to half precision"
    if not found.names:
        if _cast_on_the_way(report) is None:
            return _unscaled_first(report, location(found.file, found.line))
        by_hand = report.loop is not None and report.loop.count(Kind.DIVISOR)
        after = ", or divided by the loss scale after it" if by_hand else ""
        return f"# this line, without the cast to half precision{after}"
    return f"# compute {clean(found.names[0])} in FP32: .float() on what it is made of, outside of autocast"


def _cast_on_the_way(report: Report) -> Site | None:
    """Return where a script casts to half precision behind the backward, what it or a scaler has divided."""
    loop = report.loop
    if loop is None or not (loop.count(Kind.UNSCALE) or loop.count(Kind.DIVISOR)):
        return None
    sites = [*report.low.sites]
    last = max((at for at, site in enumerate(sites) if site.phase is Phase.BACKWARD), default=len(sites))
    casts = CASTS - {"copy_"}  # which gives weights back what is trained in FP32
    later = (site for site in sites[last:] if site.op in casts and site.phase is Phase.FORWARD and site.line)
    return next((site for site in later if site.dtype in HALVES), None)


def _unscaled_first(report: Report, here: str) -> str:
    """Return what to do before gradients are changed at a line."""
    if report.loop is not None and active_scalers(report.loop):
        return "scaler.unscale_(optimizer)  # before the gradients are changed"
    events = () if report.loop is None else (event for _, event in report.loop.sequence(1))
    if any((event.kind, event.location) == (Kind.CLIP, here) for event in events):
        return (
            "# clip behind the division by the loss scale, in FP32, to a limit that is not multiplied by it"
        )
    if report.log2_scale or (report.loop is not None and report.loop.scaling):
        return "# copy each gradient to FP32 first, and divide that by the loss scale: grad.float() / scale"
    return "# compute what the gradients are made of in FP32, the losses too: outside of autocast"


def sent_events(report: Report) -> list[Event]:
    """Return where threads ruin gradients that they send to others, each line once."""
    events = () if report.loop is None else report.loop.sequence(1)
    return list({e.name: e for _, e in events if e.kind is Kind.SENT_GRAD}.values())


def _sent(event: Event) -> Finding:
    made, _, place = event.name.partition(" ")
    file, _, line = place.rpartition(":")
    fix = ["# divide them by the loss scale first, or send them in bfloat16 or FP32"]
    if made == MADE_ZERO:
        fix = ["# multiply the loss by a scale and divide once they are FP32 again, or send bfloat16 or FP32"]
    return loop_finding(
        "AMP421 changed-gradients",
        Severity.ERROR,
        f"gradients that the script passes on become {made} in half precision here: FP32's are finite and not zero",
        [replace(event, name="", file=file, line=int(line))],
        fix,
    )


def _harmful(report: Report, kind: DoubtKind) -> list[Doubt]:
    """Return the worst doubt of a kind that does harm, if there is one."""
    found = [one for one in report.doubts if one.kind is kind and one.harms]
    return [max(found, key=lambda one: one.error)] if found else []


def _where(found: Doubt) -> str:
    return f" of {clean(found.part)}" if found.part else ""


def _finding(report: Report, rule: tuple[str, str, str], found: Doubt, message: str, *fix: str) -> Finding:
    code, name, op = rule
    makers = (maker_of(report, name) for name in found.names if found.kind is DoubtKind.GIVEN)
    at = next(filter(None, makers), found)
    site = Site(found.part, op, "output", Phase.FORWARD, report.dtype, at.file, at.line)
    known = (
        found.overflows
        or found.by_zero
        or found.kind in {DoubtKind.ADDED, DoubtKind.EVALUATED}
        or "rounded" in report.outcomes
    )
    return Finding(
        code,
        name,
        "training-loop" if found.kind in {DoubtKind.CHANGED, DoubtKind.ADDED} else "precision-loss",
        Severity.ERROR if known else Severity.WARNING,
        message if known else f"{message}; ampcheck did not test whether any rounding would do the same",
        (site,),
        {"evaluations": found.times}
        if found.times
        else {}
        if found.by_zero or found.error == inf
        else {"error": found.error},
        fix=fix,
    )
