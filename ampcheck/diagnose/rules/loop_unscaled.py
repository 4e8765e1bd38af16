"""Gradients that a loop unscales twice, goes on adding to, or unscales in part."""

from ampcheck.diagnose.rules.loop_by_hand import divided_again, rescaled_by_hand, stale_divisors
from ampcheck.diagnose.rules.loop_order import updated_between
from ampcheck.diagnose.rules.loop_state import (
    Moment,
    active_scalers,
    first_by_place,
    label,
    line_near,
    line_of,
    loop_finding,
    loop_of,
    moments,
    named_in_step,
    unscaling,
)
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import TWO_SCALES, Event, Kind, Loop, LoopObject
from ampcheck.values.report import Report
from ampcheck.values.wording import clean, plural, scale_words


def unscaled_twice(report: Report) -> list[Finding]:
    """Gradients are unscaled twice, or go on growing after they were unscaled.

    What it finds: two calls of scaler.unscale_(optimizer) without scaler.update() between them, a backward of a scaled
    loss into gradients that were unscaled already, by a scaler or by the script itself, and gradients that a scaler
    unscales once for each of two optimizers that share parameters.

    Why it matters: torch raises at the second call; gradients that are accumulated after unscale_ are a sum of parts
    with and without the scale, in which the last part drowns all others. scaler.step unscales as well: what it leaves
    has to be cleared before the next backward.

    What to do: unscale once, after the last backward of an accumulation, right before clipping; clear after the step.

    Example: unscale_ inside the loop over micro-batches instead of behind it.

    When to ignore it: when the backward after it fills the gradients of other parameters only.
    """
    loop = loop_of(report)
    again = [
        moment.event
        for moment in moments(loop)
        if moment.event.kind is Kind.UNSCALE
        and set(moment.event.targets) & moment.unscaled - _unupdated(loop, moment)
    ]
    said = {
        "unscale_ is called again for an optimizer that was unscaled and not stepped since": again,
        "a backward follows this unscale_ before the step: it adds gradients multiplied by the loss scale to those "
        "that unscale_ has divided": _grown_after_unscale(loop),
    }
    return [
        *_grown_after_step(loop),
        *divided_again(loop),
        *(
            loop_finding(
                "AMP404 unscaled-twice",
                Severity.ERROR,
                message,
                [event],
                _behind_the_last_backward(loop, event),
            )
            for message, events in said.items()
            for event in first_by_place(events)
        ),
    ]


def _behind_the_last_backward(loop: Loop, unscale: Event) -> list[str]:
    """Return the lines that unscale once: behind the backward of another loss, or in the last micro-batch."""
    unscaled, step = (
        unscaling(loop, unscale.targets),
        line_near(loop, Kind.SCALER_STEP, unscale, "scaler.step(optimizer)"),
    )
    found = [event for _, event in loop.sequence(1) if event.kind in {Kind.BACKWARD, Kind.UNSCALE}]
    at = next((at for at, event in enumerate(found) if event.location == unscale.location), len(found))
    around = [event.location for event in found[max(0, at - 1) : at + 2] if event.kind is Kind.BACKWARD]
    if len(set(around)) > 1:
        return [
            f"# move this behind the backward in {around[-1]}, and clip after it",
            unscaled,
            step,
        ]
    update = line_of(loop, Kind.UPDATE, "scaler.update()")
    return ["if last_micro_batch:", *(f"    {line}" for line in (unscaled, step, update))]


def unscaled_in_part(report: Report) -> list[Finding]:
    """A scaler leaves some gradients multiplied by the loss scale, or divides them by the scale of another one.

    What it finds: a subclass of GradScaler that unscales gradients with code of its own, after which some of them
    are as large as before; a scaler that steps an optimizer whose gradients came from a loss that another scaler
    has multiplied, by another scale, as comparing them with FP32's shows; a scale that a script keeps by hand and
    changes between two backwards of one step, or a divisor that stays where that scale changes; and a scaler that makes
    infinite gradients finite before it looks.

    Why it matters: the optimizer applies gradients that are many times too large or too small. The loss may still
    fall, since the other parameters train as they should.

    What to do: unscale every gradient of every parameter group, or call super() and change nothing there. Scale a loss
    by the scaler that steps the optimizer of its parameters.

    Example: an _unscale_grads_ that collects the gradients of matrices and forgets the biases; a generator's loss that
    is scaled by the discriminator's scaler.

    When to ignore it: when the script divides the rest itself before the step.
    """
    loop = loop_of(report)
    bad = [thing for thing in loop.things if thing.settings.get("left_scaled")]
    known = {
        event.thing for _, event in updated_between(loop)
    }  # AMP405: its scale changes before a second step
    return [
        *rescaled_by_hand(loop),
        *stale_divisors(loop),
        *_of_two_scales(loop),
        *(_made_finite(thing) for thing in loop.things if _hides(loop, thing)),
        *(
            _crossed(loop, thing)
            for thing in loop.things
            if thing.settings.get("multiplied_by") and thing.label not in known
        ),
        *(
            loop_finding(
                "AMP418 unscaled-in-part",
                Severity.ERROR,
                f"{clean(thing.kind)} leaves {int(thing.settings['left_scaled'])} of "
                f"{int(thing.settings['unscaled'])} gradients multiplied by the loss scale: the optimizer applies them "
                "as they are",
                [_unscaling_code(thing)],
                [
                    "class MyScaler(torch.amp.GradScaler):",
                    "    ...  # without _unscale_grads_ and unscale_ of its own",
                ],
            )
            for thing in bad
        ),
    ]


def _of_two_scales(loop: Loop) -> list[Finding]:
    """Return findings on backwards that add to gradients which another scaler's loss has left."""
    events = [event for _, event in loop.sequence(1)]
    bad = [event for event in events if (event.kind, event.name) == (Kind.GROWN, TWO_SCALES)]
    return [
        loop_finding(
            "AMP418 unscaled-in-part",
            Severity.ERROR,
            "this backward adds to gradients that another scaler has multiplied by another scale. Only one of the two "
            "divides the sum, so one loss counts too much or too little",
            [event],
            [
                "scaler.scale(loss + other_loss).backward()  # one scaler for losses that share weights",
                *_all_stepped(loop),
                "scaler.update()",
            ],
        )
        for event in first_by_place(bad if len(active_scalers(loop)) > 1 else ())
    ]


def _all_stepped(loop: Loop) -> list[str]:
    """Return the lines that step each optimizer of a loop by one scaler."""
    codes = (event.code for _, event in loop.sequence(1) if event.kind is Kind.SCALER_STEP)
    found = (named_in_step(code) for code in codes)
    return list(dict.fromkeys(f"scaler.step({one[2]})" for one in found if one is not None and one[2]))


def _crossed(loop: Loop, scaler: LoopObject) -> Finding:
    """Return what is wrong where a scaler divides gradients of a loss that another one has multiplied."""
    by, own = float(scaler.settings["multiplied_by"]), float(scaler.settings["divided_by"])
    steps = (event for _, event in loop.sequence(1) if event.kind is Kind.SCALER_STEP)
    return loop_finding(
        "AMP418 unscaled-in-part",
        Severity.ERROR,
        f"{scaler.label} divides these gradients by {scale_words(own)}, but their loss was multiplied by "
        f"{scale_words(by)}: they are {by / own:.3g} times as large as they should be",
        [event for event in steps if event.thing == scaler.label][:1],
        ["# one scaler for both: the one that multiplies this loss steps the optimizer of its parameters"],
    )


def _hides(loop: Loop, scaler: LoopObject) -> bool:
    """Tell whether a scaler takes infinities out of gradients, and no overflow lowers its scale."""
    own = (event for event in loop.scales if event.scaler == scaler.label)
    return bool(scaler.settings.get("made_finite")) and all(event.after >= event.before for event in own)


def _made_finite(thing: LoopObject) -> Finding:
    """Return what is wrong where a scaler takes infinities out of gradients before it looks for them."""
    return loop_finding(
        "AMP418 unscaled-in-part",
        Severity.ERROR,
        f"{clean(thing.kind)} makes overflowed gradients finite "
        f"({plural(int(thing.settings['made_finite']), 'parameter')}): no step is skipped, the scale does not fall, "
        "and the optimizer applies what is left",
        [_unscaling_code(thing)],
        [
            f"class {clean(thing.kind)}(torch.amp.GradScaler):",
            "    ...  # remove what makes gradients finite: a step that overflows must be skipped",
        ],
    )


def _unscaling_code(thing: LoopObject) -> Event:
    """Return the line at which a scaler's own unscaling begins."""
    file, _, line = str(thing.settings["unscales_at"]).rpartition(":")
    return Event(Kind.UNSCALE, thing.label, "unscale_", file=file, line=int(line))


def _unupdated(loop: Loop, moment: Moment) -> frozenset[str]:
    """Return the optimizers that were unscaled, stepped, and left so by a loop that never updates: AMP405."""
    updates = any(event.kind is Kind.UPDATE for _, event in loop.sequence(1))
    return frozenset() if updates else moment.used


def _grown_after_step(loop: Loop) -> list[Finding]:
    """Return what is wrong where a backward adds to what scaler.step has left, and the sum is stepped."""
    found: list[Event] = []
    waiting: dict[str, Event] = {}
    for _, event in loop.sequence():
        if event.kind is Kind.GROWN:
            waiting |= dict.fromkeys(event.targets, event)
        elif event.kind is Kind.ZERO_GRAD:
            waiting = (
                {} if event.thing not in waiting else {k: v for k, v in waiting.items() if k != event.thing}
            )
        elif event.kind is Kind.SCALER_STEP:
            found += [waiting.pop(target) for target in event.targets if target in waiting]
    return [
        loop_finding(
            "AMP404 unscaled-twice",
            Severity.ERROR,
            "this backward adds to the gradients of the step before: scaler.step has divided those by the loss scale, "
            "and divides the sum once more",
            [event],
            [
                line_of(loop, Kind.SCALER_STEP, "scaler.step(optimizer)"),
                line_of(loop, Kind.UPDATE, "scaler.update()"),
                f"{line_of(loop, Kind.ZERO_GRAD, 'optimizer.zero_grad()')}  # after every step",
            ],
        )
        for event in first_by_place(found)
    ]


def _grown_after_unscale(loop: Loop) -> list[Event]:
    """Return the calls of unscale_ that a scaled backward follows before the step they are for, or its end."""
    found: list[Event] = []
    waiting: dict[str, Event] = {}
    several = len(label(loop, "optimizer")) > 1
    for moment in moments(loop):
        event = moment.event
        if event.kind is Kind.UNSCALE:
            waiting |= dict.fromkeys(event.targets, event)
        elif event.kind is Kind.SCALER_STEP:
            for target in event.targets:
                waiting.pop(target, None)
        elif event.kind in {Kind.UPDATE, Kind.ZERO_GRAD}:  # a step that the loop has left out
            waiting.clear()
        elif event.kind is Kind.BACKWARD and event.scaled and not several:
            found += waiting.values()
            waiting.clear()
    return found
