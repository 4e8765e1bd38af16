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
