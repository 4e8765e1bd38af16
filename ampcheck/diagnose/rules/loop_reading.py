"""Gradients that a loop computes with while they are multiplied by the loss scale."""

import re

from ampcheck.diagnose.rules.loop_state import (
    first_by_place,
    holds_scale,
    in_scale,
    line_near,
    loop_finding,
    loop_of,
    moments,
    rounds_of,
    unscaling,
)
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import RETURNED, Event, Kind, Loop
from ampcheck.values.report import Report
from ampcheck.values.wording import clean


def read_before_unscale(report: Report) -> list[Finding]:
    """Gradients are measured while they are still multiplied by the loss scale.

    What it finds: norms, sums and largest values that the script takes of gradients of a scaled loss, before
    scaler.unscale_(optimizer), in a recorded step; and gradients of a scaled loss that are part of another loss, as in
    a gradient penalty, and that nothing divides by the scale. That is an error where it does harm.

    Why it matters: the numbers are 65536 times too large and jump whenever the scale changes: a log of gradient norms
    shows the scaler, not the training, and limits that are compared with them never hold.

    What to do: call scaler.unscale_(optimizer) between the backward and the measuring.

    Example: scaler.scale(loss).backward(); norm = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5.

    When to ignore it: when the result is divided afterwards by a scale that was read before the backward.
    """
    loop = loop_of(report)
    reads = [m for m in moments(loop) if m.event.kind in {Kind.READ_GRAD, Kind.CLIP}]
    within = [m.event for m in reads if m.event.name == RETURNED]
    seen = [m for m in reads if holds_scale(m) and m.event not in within]
    clipped = {m.number for m in seen if m.event.kind is Kind.CLIP}  # measured in order to clip: AMP401
    bad = [m.event for m in seen if m.number not in clipped]
    return [
        *(_part_of_the_loss(report, event) for event in first_by_place(within)),
        *(
            loop_finding(
                "AMP416 read-before-unscale",
                Severity.WARNING,
                f"{clean(event.name)} measures gradients that are still multiplied by the loss scale"
                f"{in_scale(loop)}: unscale them first",
                [event],
                _measured_right(loop, event),
            )
            for event in first_by_place(bad)
        ),
    ]


def _part_of_the_loss(report: Report, event: Event) -> Finding:
    """Return what is wrong where gradients of a scaled loss are part of another one."""
    settled = report.outcomes.get("settled")
    return loop_finding(
        "AMP416 read-before-unscale",
        Severity.ERROR if settled is not None and settled.harmed else Severity.WARNING,
        f"the loss holds gradients that are still multiplied by the loss scale{in_scale(loop_of(report))}: divide "
        "them by it first",
        [event],
        [event.code, _divided(event.code)],
    )


def _divided(code: str) -> str:
    """Return the line that divides what a line of code takes of a scaled loss, in its own names."""
    name = code.partition(" = ")[0].strip().rstrip(",")
    grad = name if name.isidentifier() else "grad"
    scaler = re.search(r"([\w.]+)\.scale\(", code)
    by = f"/ {scaler[1] if scaler else 'scaler'}.get_scale()"
    one = code.rstrip().endswith("[0]") or ", = " in code
    return f"{grad} = {grad} {by}" if one else f"{grad} = [one {by} for one in {grad}]"


def _measured_right(loop: Loop, reading: Event) -> list[str]:
    """Return how to measure: gradients that later backwards add to are not unscaled yet."""
    code = reading.code or f"{reading.name}(...)"
    for events in rounds_of(loop).values():
        kinds = [event.kind for event in events[events.index(reading) :]] if reading in events else []
        if Kind.BACKWARD in kinds and Kind.SCALER_STEP in kinds[kinds.index(Kind.BACKWARD) :]:
            return [
                code,
                "# a later backward adds to these gradients: divide the result by scaler.get_scale()",
            ]
    return [
        line_near(loop, Kind.BACKWARD, reading, "scaler.scale(loss).backward()"),
        f"{unscaling(loop, reading.targets)}  # before measuring",
        code,
    ]
