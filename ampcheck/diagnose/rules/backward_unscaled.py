"""Backwards in float16 of losses that were not scaled."""

import ast
import linecache
from collections.abc import Iterable, Iterator

from ampcheck.diagnose.rules.backward import gradient_read, makes_zeros
from ampcheck.diagnose.rules.loop_state import (
    active_scalers,
    first_by_place,
    label,
    loop_finding,
    loop_of,
    rounds_of,
    uncleared,
)
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import RETURNED, SEEDED, Event, Kind, Loop, LoopObject
from ampcheck.values.outcome import DEAD_SHARE, HARM_ERROR, HARM_UNDERFLOW
from ampcheck.values.report import Report
from ampcheck.values.trace import BRANCH
from ampcheck.values.wording import clean

#: How a loss is scaled.
SCALED = (
    'scaler = torch.amp.GradScaler("cuda")  # once, before the loop',
    "scaler.scale(loss).backward()",
    "scaler.unscale_(optimizer)  # before gradients are clipped or changed",
    "scaler.step(optimizer)",
    "scaler.update()",
)


def unscaled_backward(report: Report) -> list[Finding]:
    """A float16 loop calls backward on a loss that was not scaled.

    What it finds: a backward of a loss that has not gone through scaler.scale, in a step that ran under float16
    autocast, also where the script reads its gradients as those of a cache; and gradients that autograd.grad returns
    as zeros where FP32 has none, if what is made of them is lost.

    Why it matters: gradients below 2^-24 become zero. Where scaler.step still follows, gradients are divided by
    a scale that they never had, and the weights hardly move.

    What to do: scaler.scale(loss).backward().

    Example: loss.backward(); scaler.step(optimizer); scaler.update().

    When to ignore it: when the gradients are known to be large enough: see the report's loss-scale curve.
    """
    loop = loop_of(report)
    found, mixed, early, beside, half = [], set(), set(), set(), False
    # A scale of the script's own may have come down to 1.
    by_hand = {
        event.location for _, event in loop.sequence() if event.kind is Kind.BACKWARD and event.by_hand
    }
    unheard = _forwards_elsewhere(report)
    for events in rounds_of(loop).values():
        forwards = [e for e in events if e.kind is Kind.FORWARD]
        if (
            forwards or len(label(loop, "optimizer")) == 1 or not _dead(report)
        ):  # else another's round has them
            half = unheard or any(e.autocast == "float16" and e.grad for e in forwards)
        backwards = [event for event in uncleared(loop, events) if event.kind is Kind.BACKWARD]
        steps = [e for e in events if e.kind is Kind.SCALER_STEP and e.thing in active_scalers(loop)]
        plain = [e for e in backwards if not e.scaled and (steps or e.location not in by_hand)]
        if any(event.scaled for event in events):
            # What the script lets a backward start from may be scaled.
            plain = [event for event in plain if event.name != SEEDED]
            beside |= {event.location for event in plain if event.name == RETURNED}
        if plain and (steps or half):
            found += [(event, bool(steps) and not _steps_directly(events)) for event in plain]
        if any(event.kind is Kind.MIXED for event in events):
            mixed |= {event.location for event in plain}
        if backwards and backwards[-1].scaled:
            early |= {event.location for event in plain if event.name == RETURNED}
    divided = {event.location for event, steps in found if steps} - beside
    dead, settled = _dead(report), report.outcomes.get("settled")
    lost = settled is not None and settled.finite and settled.underflow > HARM_UNDERFLOW
    harmed = bool(dead) or (lost and (bool(early) or not (report.log2_scale or loop.scaling)))
    off = _switched_off(loop)
    moves = [*_lost_moves(report), *_read_later(report)]
    said = {one.origin.location for one in moves if one.origin is not None}
    return [
        *moves,
        *(
            loop_finding(
                "AMP408 unscaled-backward",
                Severity.ERROR if harmed or event.location in divided | mixed else Severity.WARNING,
                *_unscaled((event, _another_scaler(loop, event)), dead, off, (divided, mixed, early)),
            )
            for event in first_by_place(event for event, _ in found if event.location not in said)
        ),
    ]


def _steps_directly(events: Iterable[Event]) -> bool:
    """Tell whether an optimizer steps without the scaler: the loss that is not scaled may be its own."""
    return any(event.kind is Kind.STEP and not event.by for event in events)


def _multiplied_first(file: str, line: int) -> tuple[str, str]:
    """Return how gradients that a line asks for are scaled, with its names where it is one assignment."""
    names = "grads", "torch.autograd.grad", "loss", "..."
    try:
        (node,) = ast.parse(linecache.getline(file, line).strip()).body
    except (SyntaxError, ValueError, RecursionError):
        node = None
    if (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
    ):
        call = node.value
        given = [ast.unparse(one) for one in (*call.args, *call.keywords)]
        if len(call.args) > 1 and ast.unparse(call.func).endswith("grad"):
            loss = given[0] if isinstance(call.args[0], ast.Name) else f"({given[0]})"
            names = node.targets[0].id, ast.unparse(call.func), loss, ", ".join(given[1:])
    made, func, loss, rest = names
    return (
        f"{made} = {func}({loss} * 2.0**15, {rest})",
        f"{made} = [one.float() / 2.0**15 for one in {made}]  # not needed where only their direction counts",
    )


def _lost_moves(report: Report) -> Iterator[Finding]:
    """Yield findings on gradients that autograd.grad returns and that are zero, which harms.

    They should move numbers, as in an inner loop; or are part of a loss whose own gradients are off; or the script
    decides by them, otherwise than it would in FP32.
    """
    settled, lost = report.outcomes.get("settled"), dict[str, str]()
    harmed = settled is not None and settled.worst > HARM_ERROR and report.precision == "fp16"
    decides = any(BRANCH in what for what in report.low.not_audited)
    for _, event in loop_of(report).sequence():
        if event.kind is Kind.LOST_GRAD:
            lost[event.name] = "the update made from them is lost"
        elif event.kind is Kind.RETURNED_ZEROS and harmed:
            lost.setdefault(event.name, "what the loss makes of them is lost")
        elif event.kind is Kind.RETURNED_ZEROS and decides:
            lost.setdefault(event.name, "the script takes another branch than in FP32")
    for place, what in lost.items():
        file, _, line = place.rpartition(":")
        others = [f"# and the same at {other}" for other in lost if other != place]
        yield loop_finding(
            "AMP408 unscaled-backward",
            Severity.ERROR,
            f"most of the float16 gradients that autograd.grad returns here are zero, and FP32's are not: {what}",
            [Event(Kind.BACKWARD, name=RETURNED, file=file, line=int(line))],
            [*_multiplied_first(file, int(line)), *others],
        )


def _read_later(report: Report) -> Iterator[Finding]:
    """Yield a finding on a backward without a scale whose gradients the script reads, after most became zero."""
    jump = gradient_read(report)
    events = [event for _, event in loop_of(report).sequence(1) if event.kind is Kind.BACKWARD]
    plain = [
        event for event in events if not (event.scaled or event.by_hand or event.name in {RETURNED, SEEDED})
    ]
    if jump is None or not plain or not makes_zeros(report, jump.dropped):
        return
    event, reader = plain[0], jump.site.location  # that of what is made of the gradients comes later
    yield loop_finding(
        "AMP408 unscaled-backward",
        Severity.ERROR,
        f"most of the float16 gradients that {reader} reads are zero, and FP32's are not: the loss of this backward "
        "is not scaled",
        [event],
        [
            f"({_loss(event)} * 2.0**15).backward()",
            f"# {reader}: divide the gradients that are read there: .float() / 2.0**15",
        ],
    )


def _another_scaler(loop: Loop, event: Event) -> list[str]:
    """Return how a loss is scaled beside one that is scaled already, with the names of the script."""
    here = next((events for events in rounds_of(loop).values() if event in events), ())
    steps = [one.code for one in here if one.kind is Kind.STEP and not one.by]
    if not active_scalers(loop) or len(label(loop, "optimizer")) == 1:
        return [*SCALED]
    optimizer = (steps or [""])[0].partition(".step(")[0]
    return [
        'other = torch.amp.GradScaler("cuda")  # once, before the loop',
        f"other.scale({_loss(event)}).backward()",
        f"other.step({optimizer or 'optimizer'})",
        "other.update()",
    ]


def _loss(event: Event) -> str:
    """Return what the script calls the loss of a backward."""
    return event.code.partition(".backward(")[0] if ".backward(" in event.code else "loss"


def _unscaled(
    found: tuple[Event, list[str]],
    dead: str,
    off: LoopObject | None,
    places: tuple[set[str], set[str], set[str]],
) -> tuple[str, list[Event], list[str]]:
    """Return what to say of a backward without a scale, where, and what to write instead."""
    (event, lines), (divided, mixed, early) = found, places
    lost = f"what lies below 2^-24 becomes zero{f', as most of the gradient of {dead} does' if dead else ''}"
    if event.location in divided:
        said = "the loss was not scaled, but scaler.step divides its gradients by the scale"
        lines = [f"scaler.scale({_loss(event)}).backward()"]
    elif event.location in mixed:
        said = "the loss was not scaled, but the script divides its gradients by the scale of another loss"
        lines = [f"({_loss(event)} * scale).backward()  # by the scale of the other loss"]
    elif event.location in early:
        said = f"these float16 gradients are computed before the loss that they are part of is scaled: {lost}"
        lines = [*_multiplied_first(event.file, event.line)]
    elif off is not None:
        said = f"this {clean(off.kind)} is switched off (enabled=False), and float16 gradients are not scaled: {lost}"
        made = Event(Kind.SCALE, off.label, off.kind, file=off.file, line=off.line)
        return (
            said,
            [made, event],
            ['scaler = torch.amp.GradScaler("cuda")  # enabled where autocast is float16'],
        )
    else:
        said = f"float16 gradients without a loss scale: {lost}"
    return said, [event], lines


def _switched_off(loop: Loop) -> LoopObject | None:
    """Return a scaler of the script's that does nothing, where no other does anything."""
    idle = () if active_scalers(loop) else loop.things
    scalers = (one for one in idle if one.family == "scaler" and one.line)
    return next((one for one in scalers if one.settings.get("enabled") is False), None)


def _forwards_elsewhere(report: Report) -> bool:
    """Tell whether the forwards in float16 run in another thread, which sends no gradients: those are judged there."""
    known = {event.kind for _, event in loop_of(report).sequence(1)}
    return report.precision == "fp16" and known.isdisjoint({Kind.FORWARD, Kind.SENT_GRAD})


def _dead(report: Report) -> str:
    """Return a parameter of a harmed part most of whose gradient has become zero, '' where there is none."""
    settled = report.outcomes.get("settled")
    shares = settled.underflow_by if settled is not None else {}
    parts = settled.parts if settled is not None else {}  # modules, or single parameters
    names = (name for name in shares if {name, name.rpartition(".")[0]} & parts.keys())
    return clean(
        max((name for name in names if shares[name] > DEAD_SHARE), key=shares.__getitem__, default="")
    )
