"""Which parts of a training loop run under autocast, and in which precision the gradients are scaled."""

import re
from dataclasses import replace

from ampcheck.diagnose.rules.closures import around_closures
from ampcheck.diagnose.rules.loop_state import (
    active_scalers,
    device_of,
    first_by_place,
    line_of,
    loop_finding,
    loop_of,
    rounds_of,
)
from ampcheck.diagnose.subjects import place_with_class
from ampcheck.diagnose.suspects import recomputed_lower
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import ELSEWHERE, Event, Kind, Loop
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import clean

#: What a region is told of its cache.
_CACHE = re.compile(r",?\s*cache_enabled\s*=[^,]*")


def forward_outside_autocast(report: Report) -> list[Finding]:
    """The model's forward runs outside of autocast, although the loop uses mixed precision.

    What it finds: training steps with a GradScaler, or with an autocast region, in which no model was called under
    autocast; also where only the loss is computed inside.

    Why it matters: the forward runs in FP32: nothing is gained in speed or memory, while the scaler's passes over the
    gradients are paid for.

    What to do: call the model and the loss inside `with torch.autocast(...)`.

    Example: output = model(x), and then only the criterion under autocast.

    When to ignore it: when the model enters autocast by itself in a part that was not recorded.
    """
    loop = loop_of(report)
    bad = []
    for events in rounds_of(loop).values():
        trained = any(event.kind is Kind.BACKWARD for event in events)
        forwards = [e for e in events if e.kind is Kind.FORWARD and e.thing and e.grad and not e.by]
        if (
            trained
            and forwards
            and not any(event.autocast for event in forwards)
            and _means_amp(loop, events)
            and not any(_off(event) for event in events)
        ):
            bad.append((forwards[0], any(event.kind is Kind.AUTOCAST for event in events)))
    if not bad or _lowered(report):
        return []
    event, region = bad[0]
    what = "only what follows is inside of autocast" if region else "although the loss is scaled"
    opening = _opening(report)
    return [
        loop_finding(
            "AMP406 forward-outside-autocast",
            Severity.WARNING if loop.count(Kind.AUTOCAST) else Severity.INFO,
            f"the forward of {clean(event.name)} runs outside of autocast, in FP32: {what}",
            [event],
            [opening, f"    {event.code or 'output = model(input)'}", "    loss = criterion(output, target)"],
        )
    ]


def _opening(report: Report) -> str:
    """Return the line that opens the region of autocast."""
    dtype = "bfloat16" if report.precision == "bf16" else "float16"
    otherwise = f"with torch.autocast({device_of(report)}, dtype=torch.{dtype}):"
    regions = (event for _, event in loop_of(report).sequence(1) if event.kind is Kind.AUTOCAST)
    codes = (event.code for event in regions if event.code and not event.caller)
    return next((code for code in codes if "no_grad" not in code), otherwise)  # else that of an evaluation


def _means_amp(loop: Loop, events: list[Event]) -> bool:
    """Tell whether a round is meant to be trained in mixed precision."""
    scaled = any(event.kind is Kind.SCALE and event.thing in active_scalers(loop) for event in events)
    return scaled or any(event.kind is Kind.AUTOCAST and event.autocast for event in events)


def _off(event: Event) -> bool:
    """Tell whether this is a region of autocast that torch has switched off."""
    return event.kind is Kind.AUTOCAST and bool(event.dtype)


def _lowered(report: Report) -> bool:
    """Tell whether modules still computed in half precision: autocast is inside of them."""
    return any(
        site.module and site.op and site.phase is Phase.FORWARD and site.dtype in {"float16", "bfloat16"}
        for site in report.low.sites
    )


def backward_inside_autocast(report: Report) -> list[Finding]:
    """The backward runs inside of an autocast region.

    What it finds: loss.backward() called under an enabled autocast.

    Why it matters: backward operations run in the dtypes of their forward anyway; under autocast, those that custom
    functions and double backwards compute are cast once more. torch does not support it.

    What to do: leave the region after the loss and call backward behind it.

    Example: with torch.autocast(...): loss = criterion(model(x), y); loss.backward().

    When to ignore it: where no custom autograd function takes part, nothing changes.
    """
    loop = loop_of(report)
    if any(event.kind is Kind.STALE_CAST for _, event in loop.sequence(1)):
        return []  # the region is too long: that says it all
    bad = [event for _, event in loop.sequence(1) if event.kind is Kind.BACKWARD and event.autocast]
    again = recomputed_lower(report)
    return [
        loop_finding(
            "AMP407 backward-inside-autocast",
            Severity.WARNING if again is None else Severity.ERROR,
            f"the backward is called inside of autocast ({event.autocast}){_harm(report, again)}",
            [event],
            [
                line_of(loop, Kind.AUTOCAST, "with torch.autocast(...):"),
                "    ...",
                f"{event.code or 'loss.backward()'}  # outside of the region",
            ],
        )
        for event in first_by_place(bad)
    ]


def stale_weight_cast(report: Report) -> list[Finding]:
    """A forward computes with weights as they were before the optimizer changed them.

    What it finds: a recorded step in which an operation is given the cast of a weight that holds other numbers than
    the weight by now; a thread whose backward goes through such a cast; and a region around an optimizer that computes
    the loss again and again within its step.

    Why it matters: autocast casts each weight once and keeps the cast until its outermost region ends. Where a region
    lasts over optimizer steps, every later forward sees the first weights: the optimizer moves weights that nothing
    reads, and the loss does not change.

    What to do: enter the region anew for each forward; or, where it has to last, give it cache_enabled=False, or call
    torch.clear_autocast_cache() behind each step.

    Example: with torch.autocast(...): for x, y in loader: ... optimizer.step().

    When to ignore it: never.
    """
    loop = loop_of(report)
    open_regions: list[Event] = []
    forwards: list[Event] = []  # where it began before anybody listened
    for _, event in loop.sequence(1):
        if event.kind is Kind.AUTOCAST and event.autocast:
            open_regions.append(event)
        elif event.kind is Kind.FORWARD:
            forwards = [event]
        elif event.kind is Kind.AUTOCAST_END and open_regions:
            open_regions.pop()
        elif event.kind is Kind.STALE_CAST:
            itself = event.name == ELSEWHERE
            what = "a weight" if itself or not event.name else clean(event.name)
            region = f"the region of autocast around it{f' ({event.autocast})' if event.autocast else ''}"
            said = (
                f"{what} as it was before the optimizer changed it: {region} lasts over optimizer steps and"
            )
            before = [] if itself else open_regions[:1] or forwards
            return [_stale(report, said, [*before, replace(event, name="") if itself else event])]
    around = around_closures(loop)
    if around is None:
        return []
    said = "weights as they were before the step: the region of autocast around optimizer.step(closure)"
    return [_stale(report, said, [around])]


def _stale(report: Report, said: str, places: list[Event]) -> Finding:
    written = (place.code for place in places if "autocast(" in place.code and not place.caller)
    opening = next(written, _opening(report))
    alone = places[0].kind is Kind.STALE_CAST  # of a thread, whose loss may be anywhere
    around = f"around each forward{'' if alone else ' and loss, one for each step of an optimizer'}"
    return loop_finding(
        "AMP419 stale-weight-cast",
        Severity.ERROR,
        f"the forward computes with {said} keeps the casts of weights",
        places,
        [
            *_without_cache(opening),
            f"# or, faster: a region of its own inside of the loop or closure, {around}",
        ],
    )


def _without_cache(opening: str) -> list[str]:
    """Return the line that opens a region, without the cache of casts; as a note where another function opens it."""
    before, call, after = opening.partition("autocast(")
    depth = 1
    for at, letter in enumerate(after):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if not depth:
            given = _CACHE.sub("", after[:at]).strip(", ")
            return [f"{before}{call}{given}{', ' if given else ''}cache_enabled=False{after[at:]}"]
    return [f"{opening}  # which is to open it with cache_enabled=False"]


def _harm(report: Report, again: Site | None) -> str:
    """Return what overflows only because a backward runs a part of the forward again under autocast."""
    if again is None:
        return ""
    at = f" ({again.location})" if again.location else ""
    return (
        f": {place_with_class(report, again)}{at} runs again there, in {again.dtype}, and exceeds its range; "
        "in the forward it is in float32"
    )


def validated_in_another_precision(report: Report) -> list[Finding]:
    """A model is validated in another precision than it is trained in.

    What it finds: calls of a trained model in evaluation mode, without gradients, under another autocast dtype than in
    training, or under none.

    Why it matters: the validation does not see what low precision does to the model as it will be trained and, mostly,
    deployed; it is slower, too.

    What to do: run the validation inside the same autocast region, if that is how the model will be used.

    Example: autocast around the training step only.

    When to ignore it: when the model is meant to be used in the precision that it is validated in.
    """
    loop = loop_of(report)
    calls = [event for _, event in loop.sequence(1) if event.kind is Kind.FORWARD and event.thing]
    trained = {event.thing: event.autocast for event in calls if event.grad and event.training}
    bad = [
        event
        for event in calls
        if not event.grad and not event.training
        if event.thing in trained and event.autocast != trained[event.thing]
    ]
    return [
        loop_finding(
            "AMP409 validated-in-another-precision",
            Severity.INFO,
            f"{clean(event.name)} is validated in {event.autocast or 'float32'}, and trained under autocast in "
            f"{trained[event.thing] or 'float32'}",
            [event],
            [
                _opening(report),
                f"    {event.code or 'output = model(input)'}",
            ],
        )
        for event in first_by_place(bad)
    ]


def amp_switched_off(report: Report) -> list[Finding]:
    """The script asks for mixed precision, and torch has switched it off.

    What it finds: a GradScaler or an autocast region that was asked for and is disabled because there is no CUDA.

    Why it matters: the run says nothing of how the script trains in mixed precision.

    What to do: run it with --as-cuda, or `ampcheck.watch(..., as_cuda=True)` around all of the script's own mixed
    precision, which let the CPU stand in for CUDA; or run it on a GPU.

    Example: torch.cuda.amp.GradScaler() on a machine without a GPU.

    When to ignore it: when the script is meant to run in FP32 here.
    """
    loop = loop_of(report)
    scalers = [
        Event(Kind.SCALE, thing.label, thing.kind, file=thing.file, line=thing.line)
        for thing in loop.things
        if thing.family == "scaler" and thing.settings.get("live") is False
        if thing.label in active_scalers(loop)
    ]
    regions = first_by_place(event for _, event in loop.sequence(1) if _off(event))
    return [
        loop_finding(
            "AMP410 amp-switched-off",
            Severity.WARNING,
            f"{what} that the script asks for is switched off here, without CUDA: "
            "as_cuda (--as-cuda) lets the CPU stand in for it",
            [event],
        )
        for what, event in [
            *((f"the {event.name}", event) for event in scalers),
            *((f"autocast in {event.dtype} on {event.name}", event) for event in regions),
        ]
    ]
