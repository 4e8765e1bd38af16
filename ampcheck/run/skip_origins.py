"""Where the inf or NaN begins for which a step was skipped, where that step was recorded."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ampcheck.observe.script.recorded import Recorded
from ampcheck.values.formats import HALVES
from ampcheck.values.loop import Cause, Loop, ScaleEvent
from ampcheck.values.op_kinds import CASTS
from ampcheck.values.trace import Phase, Site, Trace


def with_origins(loop: Loop, recorded: Sequence[Recorded], *, alone: bool) -> Loop:
    """Return the loop with the backward operation behind each skip that fell on a recorded step."""
    known = {at: step for step in recorded for at in range(step.step, max(step.step, step.last) + 1)}
    return replace(loop, scales=tuple(_with_origin(e, known.get(e.step), alone=alone) for e in loop.scales))


def _with_origin(event: ScaleEvent, step: Recorded | None, *, alone: bool) -> ScaleEvent:
    if step is None or not event.skipped:
        return event
    bad = [site for site, stats in step.low.sites.items() if stats.nonfinite]
    computed = [site for site in bad if site.op and site.phase is not Phase.STATE]
    reference = Trace() if step.beside is None else step.beside.reference
    healthy = {site.place: stats.nonfinite for site, stats in reference.sites.items()}
    # What FP32 has too, such as the gradient of a root at zero, counts only where nothing else is found. Among ranks
    # it may have come from another.
    ours = [site for site in computed if step.low.sites[site].nonfinite > healthy.get(site.place, 0)]
    # of optimizers that step in turn a later one: its forward came behind the first's
    if event.step > step.step:
        ours.sort(key=lambda site: site.phase is not Phase.FORWARD)
    first = next(iter(ours or (computed if alone else ())), None)
    if first is not None and first.op in CASTS and first.phase is Phase.BACKWARD and first.dtype in HALVES:
        # a result in half precision was cast up: whatever has made it is to make it in FP32
        made = (site for site in ours if site.op not in CASTS and site.phase is Phase.BACKWARD and site.line)
        first = next(made, first)
    cause = event.cause or _cause(bad)
    if first is None:
        return replace(event, cause=cause)
    cause = cause or Cause("", first.module)
    new = step.low.sites[first].nonfinite > healthy.get(first.place, math.inf)
    lowered = new and first.dtype in HALVES and first.phase is not Phase.RECOMPUTE
    place = (first.module or first.location) if lowered else ""
    cause = replace(cause, op=first.op, file=first.file, line=first.line, place=place)
    if not ours and first.phase is Phase.FORWARD and step.beside is not None:
        enters = bad[0].slot.startswith("input[") and not bad[0].op
        cause = replace(cause, op="" if enters else first.op, given=bad[0].module or "the model")
    return replace(event, cause=cause)


def _cause(bad: Sequence[Site]) -> Cause | None:
    """Return whose gradient was not finite, for a step that the optimizer skipped inside of itself."""
    grads = [site for site in bad if site.slot.startswith("param_grad[")]
    if not grads:
        return None
    name = grads[-1].slot.removeprefix("param_grad[").removesuffix("]")
    return Cause(f"{grads[-1].module}.{name}".lstrip("."), grads[-1].module, others=len(grads) - 1)
