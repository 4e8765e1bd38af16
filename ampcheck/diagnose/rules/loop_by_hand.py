"""What goes wrong in loops that scale their loss by hand."""

from ampcheck.diagnose.rules.loop_state import first_by_place, line_of, loop_finding, rounds_of
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import Kind, Loop
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
            "them by it only afterwards",
            [event],
            [
                line_of(loop, Kind.BACKWARD, "(loss * scale).backward()"),
                "for p in parameters: p.grad /= scale  # before clipping",
                event.code or f"{event.name}(...)",
            ],
        )
        for event in first_by_place(bad)
    ]
