"""What goes wrong in loops that scale their loss by hand."""

import re
from dataclasses import replace

from ampcheck.diagnose.rules.loop_state import first_by_place, line_of, loop_finding, rounds_of
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import NOT_FINITE, SPOILT, Event, Kind, Loop
from ampcheck.values.wording import clean


def clipped_by_hand(loop: Loop) -> list[Finding]:
    """Return findings on gradients of a loss scaled by hand, clipped before and divided by the scale after that."""
    bad = []
    for events in rounds_of(loop).values():
        divided = [at for at, event in enumerate(events) if event.kind is Kind.STEP and event.by_hand]
        clips = [event for event in events[: max(divided, default=0)] if event.kind is Kind.CLIP]
        bad += [event for event in clips if event.by_hand]
    return [
        loop_finding(
            "AMP401 clip-before-unscale",
            Severity.ERROR,
            f"{clean(event.name)} limits gradients that are still multiplied by the loss scale: the script divides "
            "them by it only afterwards; that division belongs in front of the clipping, once",
            [event],
            [
                line_of(loop, Kind.BACKWARD, "(loss * scale).backward()"),
                "# here, and no more behind the clipping: the lines that divide the gradients by the scale",
                event.code or f"{event.name}(...)",
                line_of(loop, Kind.STEP, "optimizer.step()"),
            ],
        )
        for event in first_by_place(bad)
    ]


def stepped_by_hand(loop: Loop) -> list[Finding]:
    """Return findings on optimizers that step gradients which overflowed at a scale that the script applies."""
    events = [event for _, event in loop.sequence(1)]
    steps = [event for event in events if event.kind is Kind.STEP]
    if not any((event.kind, event.name) == (Kind.GROWN, SPOILT) for event in events):
        steps = [event for event in steps if event.name == NOT_FINITE]
    return [
        loop_finding(
            "AMP403 step-beside-scaler",
            Severity.ERROR,
            "the optimizer steps on gradients that are inf or NaN: the script scales the loss itself, and no check for "
            "overflow keeps them out",
            [event],
            [
                f"grads = [p.grad for g in {_name(event)}.param_groups for p in g['params'] if p.grad is not None]",
                "if all(grad.isfinite().all() for grad in grads):  # else lower the scale and clear the gradients",
                f"    {event.code or 'optimizer.step()'}",
            ],
        )
        for event in first_by_place(replace(event, name="") for event in steps)
    ]


def _name(event: Event) -> str:
    """Return what the script calls the optimizer that a line of it steps."""
    found = re.search(r"([\w.\[\]]+)\.step\(", event.code)
    return found[1] if found else "optimizer"
