"""What goes wrong in loops that scale their loss by hand, or divide by the scale where they should not."""

import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, isclose

from ampcheck.diagnose.rules.loop_state import (
    first_by_place,
    line_near,
    loop_finding,
    rounds_of,
    stay_infinite,
)
from ampcheck.diagnose.rules.makers import held_in_fp32, maker_of, module_cast
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import FP16
from ampcheck.values.loop import (
    IN_SCALE,
    NOT_FINITE,
    RESCALED,
    RETURNED,
    SPOILT,
    Event,
    Kind,
    Loop,
    ScaleEvent,
)
from ampcheck.values.maker import BEGINS_SCALE, MAKES_SCALE
from ampcheck.values.report import Report
from ampcheck.values.wording import clean, scale_words

#: Optimizers without an eps whose steps are as long whatever the gradients are multiplied by.
_IGNORE_SIZE = frozenset({"Rprop", "Lion", "SignSGD"})
#: How far a divisor may be off, relatively, and still be the scale.
_CLOSE = 1e-3


def scale_in_half(report: Report, events: Sequence[ScaleEvent]) -> tuple[list[Event], str, list[str]] | None:
    """Return where a loss scale that became infinite is put in float16, why it did, and what to do; None if it is not.

    It has grown to what float16 does not hold, and FP32 does.
    """
    last = next((one.before for one in events if one.before < one.after == inf), inf)
    maker = maker_of(report, MAKES_SCALE)
    typed = maker is not None and "dtype" in linecache.getline(maker.file, maker.line)
    place = (maker if typed else maker_of(report, BEGINS_SCALE)) or module_cast(report)
    if last > FP16.max or place is None:
        return None
    why = f"; it is held in float16, which ends at {FP16.max:g}, and grew from {scale_words(last)}"
    made = Event(Kind.SCALE, name="scale", file=place.file, line=place.line)
    return [made], why, [f"# {place.location}: leave the loss scale in FP32"]


def clipped_by_hand(loop: Loop) -> list[Finding]:
    """Return findings on gradients of a loss scaled by hand, clipped before and divided by the scale after that."""
    bad = []
    for events in rounds_of(loop).values():
        divided = [at for at, event in enumerate(events) if event.kind is Kind.STEP and event.by_hand]
        clips = [event for event in events[: max(divided, default=0)] if event.kind is Kind.CLIP]
        bad += [event for event in clips if event.by_hand]
    units = limits_by_place(loop)
    return [
        loop_finding(
            "AMP401 clip-before-unscale",
            Severity.WARNING if units.get(event.location) else Severity.ERROR,
            f"{clean(event.name)} limits gradients that are still multiplied by the loss scale: the script divides "
            "them by it only afterwards; that division belongs in front of the clipping, once",
            [event],
            [
                line_near(loop, Kind.BACKWARD, event, "(loss * scale).backward()"),
                "# here, and no more behind the clipping: the lines that divide the gradients by the scale",
                event.code or f"{event.name}(...)",
                line_near(loop, Kind.STEP, event, "optimizer.step()"),
            ],
        )
        for event in first_by_place(bad)
        if units.get(event.location) != IN_SCALE
    ]


def limits_by_place(loop: Loop) -> dict[str, str]:
    """Return, by line, whether what is clipped to there is multiplied by the loss scale, where that was seen."""
    clips = [event for _, event in loop.sequence(1) if event.kind is Kind.CLIP and event.limit]
    return {event.location: event.limit for event in sorted(clips, key=lambda event: event.limit == IN_SCALE)}


def left_scaled(loop: Loop, *, clipped: bool) -> list[Finding]:
    """Return findings on gradients that were left scaled, where others were divided: in a clipping, or in a step.

    What the step does to those that were clipped so follows from that.
    """
    events = [event for _, event in loop.sequence(1) if event.kind is Kind.LEFT_SCALED]
    mixed = {event.name for event in events if not event.thing}
    bad = [
        event for event in events if (not event.thing if clipped else event.thing and event.name not in mixed)
    ]
    return [_left_scaled(loop, event) for event in first_by_place(bad)]


def _left_scaled(loop: Loop, event: Event) -> Finding:
    names = clean(event.name)
    divided = [f"# here: divide by the loss scale what was left out as well: {names}"]
    if not event.thing:
        return loop_finding(
            "AMP401 clip-before-unscale",
            Severity.ERROR,
            f"some of the gradients clipped here are still multiplied by the loss scale, and drown the others, which "
            f"the script has divided by it: those of {names}",
            [event],
            [*divided, event.code],
        )
    optimizer = loop.thing(event.thing)
    ignores = optimizer is not None and ("eps" in optimizer.settings or optimizer.kind in _IGNORE_SIZE)
    return loop_finding(
        "AMP403 step-beside-scaler",
        Severity.WARNING if ignores else Severity.ERROR,
        f"the optimizer steps gradients that are still multiplied by the loss scale, which the script divides the "
        f"others by: those of {names}",
        [event],
        [*divided, event.code or "optimizer.step()"],
    )


def divided_again(loop: Loop) -> list[Finding]:
    """Return findings on gradients that are divided by a scale more than once: by the script, or by a scaler."""
    events = [event for _, event in loop.sequence(1)]
    early = [event for event in events if event.kind is Kind.DIVIDE]
    twice = [event for event in events if event.kind is Kind.UNSCALED_AGAIN]
    return [
        *(
            loop_finding(
                "AMP404 unscaled-twice",
                Severity.ERROR,
                "the script divides these gradients by its loss scale, and the next backward adds to them: what was "
                f"there is divided again and again, and hardly counts ({clean(event.name)})",
                [event],
                ["if last_micro_batch:", f"    {event.code}"],
            )
            for event in first_by_place(early)
        ),
        *(
            loop_finding(
                "AMP404 unscaled-twice",
                Severity.ERROR,
                "the scaler divides gradients by the loss scale that it has divided for another optimizer already: "
                f"both have {clean(event.name)}",
                [event],
                ["# give each parameter to one optimizer only, or run a backward for each of the two"],
            )
            for event in first_by_place(twice)
        ),
    ]


def rescaled_by_hand(loop: Loop) -> list[Finding]:
    """Return findings on a scale that the script changes between backwards whose gradients add up."""
    several = sum(thing.family == "optimizer" for thing in loop.things) > 1
    if several or not loop.first_scales or stay_infinite(loop):  # they add up as nobody clears them
        return []
    # Places of backwards that add up: two of different losses may have weights of their own.
    bad, last = [], ["", ""]
    for _, event in loop.sequence(1):
        if event.kind is Kind.BACKWARD and event.name != RETURNED:
            last = [last[1], event.location]
        elif (event.kind, event.name) == (Kind.GROWN, RESCALED) and last[0] == last[1] and last[1]:
            bad.append(event)
    return [
        loop_finding(
            "AMP418 unscaled-in-part",
            Severity.ERROR,
            "this loss and that of the backward before it are multiplied by different scales, and their gradients add "
            "up: the sum is divided by one scale, so one of the losses counts too much or too little",
            [event],
            [
                "# one scale for all losses of a step: where each has its own, the smallest of them",
                "# and change it after the step, not between its backwards",
            ],
        )
        for event in first_by_place(bad)
    ]


def stale_divisors(loop: Loop) -> list[Finding]:
    """Return findings on gradients that are divided by one number only, although the loss scale has changed.

    Where several backwards add up, they may be divided by their number as well.
    """
    rows = []
    for events in rounds_of(loop).values():
        own = [event for event in events if event.kind is Kind.DIVISOR]
        backwards = sum(event.kind is Kind.BACKWARD for event in events)
        if len({event.location for event in own}) == 1:  # else nobody knows which is the scale's
            scale, divisor = map(float, own[0].name.split())
            fits = any(isclose(divisor, one, rel_tol=_CLOSE) for one in (scale, scale * backwards))
            rows.append((scale, divisor, fits, own[0]))
    places = {event.location for *_, event in rows}
    stale = []
    for place in places:
        there = [row for row in rows if row[3].location == place]
        if len({divisor for _, divisor, _, _ in there}) == 1 and any(fits for _, _, fits, _ in there):
            stale += [row for row in there if not row[2]]
    if not stale:
        return []
    scale, divisor, _, event = max(stale, key=lambda row: row[0] / row[1])
    return [
        loop_finding(
            "AMP418 unscaled-in-part",
            Severity.ERROR,
            f"these gradients are divided by {scale_words(divisor)}, which fits the loss scale of an earlier step: "
            f"their loss was multiplied by {scale_words(scale)}",
            [replace(event, name="")],
            ["# divide by the scale that has multiplied the loss of this step"],
        )
    ]


def stepped_by_hand(loop: Loop) -> list[Finding]:
    """Return findings on optimizers that step gradients which overflowed at a scale that the script applies."""
    events = [event for _, event in loop.sequence(1)]
    steps = [event for event in events if event.kind is Kind.STEP]
    spoilt = [event for event in events if (event.kind, event.name) == (Kind.GROWN, SPOILT)]
    whose = {label for event in spoilt for label in event.targets}
    steps = [
        event
        for event in steps
        if event.name == NOT_FINITE or (spoilt and (event.thing in whose or not whose))
    ]
    return [
        loop_finding(
            "AMP403 step-beside-scaler",
            Severity.ERROR,
            "the optimizer steps on gradients that are inf or NaN: the script scales the loss itself, and no check for "
            "overflow keeps them out",
            [event],
            [
                f"grads = [p.grad for g in {_name(event)}.param_groups for p in g['params'] if p.grad is not None]",
                "if all(grad.isfinite().all() for grad in grads):",
                f"    {event.code or 'optimizer.step()'}",
                "else:  # lower the scale, too; this step does not count",
                f"    {_name(event)}.zero_grad()",
            ],
        )
        for event in first_by_place(replace(event, name="") for event in steps)
    ]


def _name(event: Event) -> str:
    """Return what the script calls the optimizer that a line of it steps."""
    found = re.search(r"([\w.\[\]]+)\.step\(", event.code)
    return found[1] if found else "optimizer"


def never_stepped(report: Report, loop: Loop) -> Iterator[Finding]:
    """Yield lines that ask for gradients again and again that are not finite, and that no step follows any more."""
    events = [event for _, event in loop.sequence(1)]
    if any(event.name == SPOILT for event in events):  # weights are not finite, which says more
        return
    for event in (event for event in events if event.kind is Kind.NEVER_FINITE):
        times, _, scale = event.name.partition(" ")
        if report.precision != "fp16" and not scale:  # nothing tells that half precision has made them so
            continue
        said = f"no step follows the last {times} backwards: their gradients are not finite"
        at = replace(event, name=RETURNED)
        fix = [
            "# where the loss scale grows: keep it in FP32, or as a number",
            "# where it falls: halve it again",
        ]
        if (maker := maker_of(report, scale)) is not None:
            said = f"{said}; {clean(scale)}, made in half precision, is infinite"
            fix, at = [held_in_fp32(report, scale)], replace(at, file=maker.file, line=maker.line)
        elif event.by_hand and not any(one.kind is Kind.ZERO_GRAD for one in events):
            said = f"{said}, and they are never cleared, so they stay infinite"
            fix = ["optimizer.zero_grad()  # where a step is skipped, too"]
        numbers = {"skipped": float(times)}
        yield loop_finding("AMP206 scale-collapse", Severity.ERROR, said, [at], fix, numbers)
