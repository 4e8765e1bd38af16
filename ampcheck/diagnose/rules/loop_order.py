"""Calls of a training loop that come in the wrong order."""

from collections.abc import Sequence

from ampcheck.diagnose.rules.clipped_together import clipped_together
from ampcheck.diagnose.rules.libraries import clipping_of_library, library_of
from ampcheck.diagnose.rules.loop_by_hand import (
    clipped_by_hand,
    left_scaled,
    limits_by_place,
    stepped_by_hand,
)
from ampcheck.diagnose.rules.loop_state import (
    Moment,
    active_scalers,
    first_by_place,
    holds_scale,
    in_scale,
    label,
    line_near,
    line_of,
    loop_finding,
    loop_of,
    moments,
    named_in_step,
    rounds_of,
    unscaling,
)
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import GIVEN, IN_SCALE, Event, Kind, Loop
from ampcheck.values.report import Report
from ampcheck.values.wording import clean

#: Steps for each change of the scale from which on it changes rarely.
FEW_CHANGES = 50
#: Steps of an optimizer for each backward up to which every gradient may come from one of them.
_PER_BACKWARD = 3


def clip_before_unscale(report: Report) -> list[Finding]:
    """Gradients are clipped while they are still multiplied by the loss scale.

    What it finds: torch.nn.utils.clip_grad_norm_ or clip_grad_value_ on gradients of a scaled loss, before
    scaler.unscale_(optimizer), or before the script divides them by a scale of its own; also where it has left out
    some of them; and a hook that clamps a gradient within the backward. A limit that is far larger than anybody's, and
    a usual one times the scale, is taken to be multiplied by it, and no finding.

    Why it matters: the limit is compared with gradients that are 65536 times too large, so that nearly every step is
    clipped, and to a length divided by the scale: training slows down without any message, and changes whenever
    the scale does.

    What to do: call scaler.unscale_(optimizer) between the backward and the clipping.

    Example: scaler.scale(loss).backward(); clip_grad_norm_(model.parameters(), 1.0); scaler.step(optimizer).

    When to ignore it: when the limit is meant for scaled gradients and multiplied by scaler.get_scale(); a warning says
    that it may be.
    """
    loop = loop_of(report)
    clips = [m for m in moments(loop) if m.event.kind is Kind.CLIP and holds_scale(m)]
    # One of a line: clip_grad_norm_ clips by operations of torch's own.
    bad: dict[tuple[str, int], Moment] = {}
    for moment in clips:
        bad.setdefault((moment.event.file, moment.event.line), moment)
    units = limits_by_place(loop)
    left = ((found, found.sites[-1]) for found in left_scaled(loop, clipped=True))
    in_part = [found for found, site in left if (site.file, site.line) not in bad]
    return [*clipped_by_hand(loop), *in_part] + [
        loop_finding(
            "AMP401 clip-before-unscale",
            Severity.WARNING if units.get(moment.event.location) else Severity.ERROR,
            f"{clean(moment.event.name)} limits gradients that are still multiplied by the loss scale"
            f"{in_scale(loop)}: unscale them first",
            [moment.event],
            _unscaled_first(loop, moment),
        )
        for moment in bad.values()
        if units.get(moment.event.location) != IN_SCALE
    ]


def _unscaled_first(loop: Loop, moment: Moment) -> Sequence[str]:
    """Return the lines in their right order; in a library's terms where it is a library that scales the loss."""
    event = moment.event
    theirs = next((e for _, e in loop.sequence(1) if e.kind is Kind.SCALER_STEP and e.caller), None)
    known = clipping_of_library(event.code, library_of(theirs)) if theirs and not event.caller else ()
    return known or [
        line_near(loop, Kind.BACKWARD, event, "scaler.scale(loss).backward()"),
        *_other_unscaling(loop, moment),
        f"{unscaling(loop, set(event.targets) & moment.scaled)}  # before clipping",
        event.code or f"{event.name}(...)",
        line_near(loop, Kind.SCALER_STEP, event, "scaler.step(optimizer)"),
    ]


def _other_unscaling(loop: Loop, moment: Moment) -> list[str]:
    """Return the lines that unscale other gradients before a clipping: they stay."""
    targets = set(moment.event.targets) & moment.scaled
    events = (event for _, event in loop.sequence(1) if event.kind is Kind.UNSCALE and event.code)
    return list(dict.fromkeys(event.code for event in events if targets.isdisjoint(event.targets)))


def clip_after_step(report: Report) -> list[Finding]:
    """Gradients are clipped after the optimizer has used them.

    What it finds: clipping between an optimizer's step and the next backward.

    Why it matters: the step was taken with gradients of any length; the clipping does nothing, or, where the optimizer
    is stepped once more, belongs to a second update that nobody asked for.

    What to do: clip between scaler.unscale_(optimizer) and scaler.step(optimizer).

    Example: scaler.step(optimizer); scaler.update(); clip_grad_norm_(model.parameters(), 1.0).

    When to ignore it: when the clipped gradients are only looked at.
    """
    loop = loop_of(report)
    each = loop.steps / max(1, len(label(loop, "optimizer")))
    if each > _PER_BACKWARD * loop.count(Kind.BACKWARD):
        return []  # gradients come from elsewhere, as from threads, and nobody knows when
    bad = [
        moment.event
        for moment in moments(loop)
        if moment.event.kind is Kind.CLIP and set(moment.event.targets or {""}) <= moment.stepped
    ]
    late = _late_in_scalers(loop)
    return [
        _clipped_late(loop, event)
        for event in first_by_place(bad)
        if event in late or not event.by.startswith("scaler")
    ]


def _late_in_scalers(loop: Loop) -> set[Event]:
    """Return what a scaler of the script's own clips in its step when the optimizer has been stepped there."""
    late, stepped = set(), set()
    for _, event in loop.sequence():
        if event.kind is Kind.SCALER_STEP:
            stepped.discard(event.thing)
        elif event.kind is Kind.STEP:
            stepped.add(event.by)
        elif event.kind is Kind.CLIP and event.by in stepped:
            late.add(event)
    return late


def _clipped_late(loop: Loop, event: Event) -> Finding:
    """Return what to say of a clipping behind a step, or within one, where nobody sees what comes first."""
    within = event.by.startswith("optimizer")
    where = (
        "is called within the optimizer's own step: whether it comes before the weights change was not seen"
    )
    after = "comes after the step that should have used the clipped gradients"
    return loop_finding(
        "AMP402 clip-after-step",
        Severity.WARNING if within else Severity.ERROR,
        f"{clean(event.name)} {where if within else after}",
        [event],
        _right_order(loop, event),
    )


def _right_order(loop: Loop, clip: Event) -> list[str]:
    clipping = clip.code or "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)"
    if not active_scalers(loop):
        return [clipping, line_near(loop, Kind.STEP, clip, "optimizer.step()")]
    return [
        unscaling(loop, clip.targets),
        clipping,
        line_near(loop, Kind.SCALER_STEP, clip, "scaler.step(optimizer)"),
        line_of(loop, Kind.UPDATE, "scaler.update()"),
    ]


def step_beside_scaler(report: Report) -> list[Finding]:
    """The optimizer is stepped directly although its gradients belong to a scaler.

    What it finds: optimizer.step() on gradients of a scaled loss, or on those that scaler.step has just applied; and on
    gradients that are inf or NaN, where the script scales the loss itself or clips several optimizers at once; and on
    those that it has left out where it divides others by the scale: a warning where their size does not matter.

    Why it matters: gradients are applied that the loss scale multiplies, or twice, and infinite ones reach the weights.

    What to do: step through scaler.step(optimizer) only.

    Example: scaler.step(optimizer); scaler.update(); optimizer.step().

    When to ignore it: when you unscale and check the gradients for overflow yourself.
    """
    loop = loop_of(report)
    through = {
        target
        for _, event in loop.sequence(1)
        if event.kind is Kind.SCALER_STEP and event.thing in active_scalers(loop)
        for target in event.targets
    }
    direct = [m for m in moments(loop) if m.event.kind is Kind.STEP and not m.event.by]
    bad = {
        moment.event: moment
        for moment in reversed(direct)
        if moment.event.thing in moment.scaled | moment.unscaled | (through & moment.stepped)
    }
    steps = [moment.event for moment in direct]
    divided = {event.location for event in steps if event.by_hand}  # as a recorded step shows
    bad = {event: moment for event, moment in bad.items() if event.location not in divided}
    if _skips_itself(loop):
        bad = {event: moment for event, moment in bad.items() if event.thing not in moment.unscaled}
    by_hand = stepped_by_hand(loop) if report.precision == "fp16" else []
    return [*by_hand, *left_scaled(loop, clipped=False), *clipped_together(loop)] + [
        loop_finding(
            "AMP403 step-beside-scaler",
            Severity.WARNING if event.thing in bad[event].unscaled else Severity.ERROR,
            f"optimizer.step() {_bypassed(bad[event])}",
            [event],
            _stepped_by_scaler(loop, event, through),
        )
        for event in first_by_place(event for event in steps if event in bad)
    ]


def _stepped_by_scaler(loop: Loop, event: Event, through: set[str]) -> list[str]:
    """Return how the scaler steps: an optimizer that nothing steps so yet where it is stepped now."""
    line = line_near(loop, Kind.SCALER_STEP, event, "scaler.step(optimizer)")
    optimizer, scaler = named_in_step(event.code), named_in_step(line)
    update, code = line_of(loop, Kind.UPDATE, "scaler.update()"), event.code or "optimizer.step()"
    if event.thing in through or optimizer is None or scaler is None:
        return [line, update, f"# without: {code}"]
    own = f"{scaler[1]}.step({optimizer[1]})  # here, in place of {code} and of a division before it"
    return [own, f"{update}  # once, after the last step"]


def _skips_itself(loop: Loop) -> bool:
    """Tell whether the code looks at the unscaled gradients itself: after an overflow no optimizer was stepped."""
    skips = sum(event.skipped for event in loop.scales)
    stepped = loop.count(Kind.STEP) + loop.count(Kind.SCALER_STEP)
    return bool(skips) and loop.count(Kind.UNSCALE) >= stepped + skips


def _bypassed(moment: Moment) -> str:
    """Return what a direct step does to the gradients it finds."""
    if moment.event.thing in moment.stepped:
        return "applies the same gradients a second time, after scaler.step"
    if moment.event.thing in moment.unscaled:
        return "bypasses the scaler: a step whose gradients overflow is skipped only if this code does so"
    return "bypasses the scaler, which divides gradients by the loss scale, and skips a step in which they overflow"


def scale_not_updated(report: Report) -> list[Finding]:
    """scaler.update() is missing, doubled, or comes between two optimizers of one iteration.

    What it finds: scaler.step without any scaler.update; an update without a step before it, or two without a step
    between them; an update after which another optimizer is stepped with gradients of the scale before.

    Why it matters: without update the scale never falls after an overflow, and torch raises at the next step; an update
    between two steps changes the scale that the second optimizer's gradients are divided by.

    What to do: call scaler.update() once an iteration, after the last scaler.step.

    Example: scaler.step(opt_d); scaler.update(); scaler.step(opt_g); scaler.update(), after both backwards.

    When to ignore it: never where torch raises; else where each optimizer has a scaler of its own. An update between
    two optimizers is a warning where the scale changes in one of 50 steps at most.
    """
    loop = loop_of(report)
    scalers = active_scalers(loop)
    found = [*_missing(loop, scalers), *_doubled(loop, scalers)]
    between = updated_between(loop)
    changes = sum(event.before != event.after for event in loop.scales)
    # Only a step in which the scale changes is harmed.
    rarely = loop.steps >= FEW_CHANGES * max(changes, 1)
    severities = [Severity.ERROR] * len(found) + [Severity.WARNING if rarely else Severity.ERROR] * len(
        between
    )
    return [
        loop_finding("AMP405 scale-not-updated", severity, message, [event], _updated_once(loop, event))
        for severity, (message, event) in zip(severities, [*found, *between], strict=True)
    ]


def _updated_once(loop: Loop, event: Event) -> list[str]:
    """Return the lines that step and update: those of the scaler that the event is of, where they are known."""
    stepped = named_in_step(event.code)
    if stepped is not None:
        return [event.code, f"{stepped[1]}.update()  # once, after the last step"]
    last = line_of(loop, Kind.SCALER_STEP, "scaler.step(optimizer)")
    return [last, f"{line_of(loop, Kind.UPDATE, 'scaler.update()')}  # once, after the last step"]


def _missing(loop: Loop, scalers: frozenset[str]) -> list[tuple[str, Event]]:
    """Return the first step of each scaler that is never updated; of several that step, each needs its own update."""
    found = []
    for scaler in sorted(scalers):
        own = [m for m in moments(loop) if m.event.thing == scaler]
        steps = [m.event for m in own if m.event.kind is Kind.SCALER_STEP]
        updated = any(m.event.kind is Kind.UPDATE for m in own)
        # One step may be the script's last act; torch raises at the second, and where it is unscaled again.
        again = any(m.event.kind is Kind.UNSCALE and m.used & set(m.event.targets) for m in own)
        if steps and not updated and (again or len(steps) > 1):
            found.append(("scaler.step without scaler.update(): the scale never adapts", steps[0]))
    return found


def _doubled(loop: Loop, scalers: frozenset[str]) -> list[tuple[str, Event]]:
    """Return updates that nothing was checked for overflow before: torch raises there."""
    found = []
    done = dict.fromkeys(scalers, "before the first step")
    for _, event in loop.sequence():
        if event.thing not in scalers:
            continue
        if event.kind in {Kind.SCALER_STEP, Kind.UNSCALE}:
            done[event.thing] = ""
        elif event.kind is Kind.UPDATE and event.name != GIVEN:
            found += [(event, done[event.thing])] if done[event.thing] else []
            done[event.thing] = "again before another step"
    first = dict(reversed(found))
    return [(f"scaler.update() is called {first[event]}", event) for event in first_by_place(first)]


def updated_between(loop: Loop) -> list[tuple[str, Event]]:
    """Return updates after which an optimizer is stepped with gradients from before."""
    found, scalers = [], active_scalers(loop)
    for events in rounds_of(loop).values():
        updated: dict[str, Event] = {}
        stepped: set[str] = set()
        for event in events:
            again = event.kind is Kind.SCALER_STEP and not stepped.isdisjoint(event.targets)
            if event.kind is Kind.BACKWARD or again:  # the next step, though its backward was not heard
                updated, stepped = {}, set()
            elif event.thing in scalers and event.kind is Kind.UPDATE:
                updated[event.thing] = event
            elif event.kind is Kind.SCALER_STEP and event.thing in updated:
                found.append(updated[event.thing])
            if event.kind is Kind.SCALER_STEP:
                stepped |= set(event.targets)
    words = "scaler.update() comes before the step of another optimizer, whose gradients have the old scale"
    return [(words, event) for event in first_by_place(found)]
