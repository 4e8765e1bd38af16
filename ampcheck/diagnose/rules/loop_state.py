"""What the rules of training loops share: the state that gradients are in at each event."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ampcheck.diagnose.rules.libraries import in_library
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import NOT_FINITE, Event, Kind, Loop
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import scale_words


@dataclass(frozen=True, slots=True)
class Moment:
    """An event and what had happened before it."""

    number: int  #: of its round
    event: Event
    scaled: frozenset[str]  #: optimizers whose gradients may hold the loss scale
    unscaled: frozenset[str]  #: optimizers that were unscaled since the scale was last updated
    stepped: frozenset[str]  #: optimizers that were stepped since the last backward
    #: optimizers that a scaler has stepped since its scale was last updated
    used: frozenset[str] = frozenset()


#: What gradients are computed for.
_USES = frozenset({Kind.SCALER_STEP, Kind.STEP})


class _State:
    """Follows the gradients of each optimizer from event to event."""

    def __init__(self, loop: Loop) -> None:
        self.optimizers = frozenset(label(loop, "optimizer"))
        self.scalers = active_scalers(loop)
        self.scaled: set[str] = set()
        self.unscaled: set[str] = set()
        self.stepped: set[str] = set()
        self.used: set[str] = set()
        self.taken = False  #: a scaler has stepped since the last backward of a scaled loss
        own = (event for _, event in loop.sequence(1) if event.thing in self.scalers)
        self.through = {target for event in own for target in event.targets}

    def moment(self, number: int, event: Event) -> Moment:
        """Return the event with the state before it."""
        held = self.scaled, self.unscaled, self.stepped, self.used
        return Moment(number, event, *map(frozenset, held))

    def after(self, event: Event) -> None:
        """Take the effect of an event into account."""
        if event.kind is Kind.BACKWARD:
            self.stepped.clear()
            if event.scaled and self.scalers:
                self.scaled |= self.optimizers - self.unscaled
            elif self.taken or self.through:  # the scaled gradients are others', and this loss has its own
                self.scaled &= self.through
            self.taken = self.taken and not event.scaled
        elif event.kind is Kind.ZERO_GRAD:
            self.scaled -= {event.thing} if event.thing in self.optimizers else self.optimizers
        elif event.kind is Kind.STEP:
            self.stepped.add(event.thing)
        elif event.thing in self.scalers:
            self._scaler(event)

    def _scaler(self, event: Event) -> None:
        targets = set(event.targets)
        if event.kind is Kind.UNSCALE:
            self.scaled -= targets
            self.unscaled |= targets
        elif event.kind is Kind.SCALER_STEP:
            self.scaled -= targets
            self.stepped |= targets
            self.used |= targets
            self.taken = True
        elif event.kind is Kind.UPDATE:
            self.unscaled.clear()
            self.used.clear()


def moments(loop: Loop) -> Iterator[Moment]:
    """Yield the events of a loop in order, with the state of the gradients before each."""
    state = _State(loop)
    for number, event in loop.sequence():
        yield state.moment(number, event)
        state.after(event)


def label(loop: Loop, family: str) -> list[str]:
    """Return the labels of a family of objects."""
    return [thing.label for thing in loop.things if thing.family == family]


def active_scalers(loop: Loop) -> frozenset[str]:
    """Return the scalers that were not switched off by the script itself."""
    return frozenset(
        thing.label
        for thing in loop.things
        if thing.family == "scaler" and thing.settings.get("enabled", True) is not False
    )


def refused(loop: Loop) -> Event | None:
    """Return the call of a scaler, to unscale or to step, that is the last that was seen of a loop; None for none.

    The script ended there, or was stopped.
    """
    last = deque((event for _, event in loop.sequence()), 1)
    looks = [
        e for e in last if e.kind in {Kind.UNSCALE, Kind.SCALER_STEP} and e.thing in active_scalers(loop)
    ]
    return next(iter(looks), None)


def rounds_of(loop: Loop) -> Mapping[int, list[Event]]:
    """Return the events by round, in order."""
    found: dict[int, list[Event]] = {}
    for number, event in loop.sequence():
        found.setdefault(number, []).append(event)
    return found


def uncleared(loop: Loop, events: Iterable[Event]) -> list[Event]:
    """Return events of a round without the backwards whose gradients were cleared before anything used them.

    Of several optimizers that clear their own, nobody knows whose gradients these were, but of the one that steps next.
    """
    own, events = label(loop, "optimizer"), list(events)
    kept, waiting = list[Event | None](), list[int]()
    for number, event in enumerate(events):
        others = event.thing in own and len(own) > 1
        clears = event.kind is Kind.ZERO_GRAD and not (
            others and _next_stepped(events, number) != event.thing
        )
        if clears:
            kept = [None if at in waiting else one for at, one in enumerate(kept)]
        if clears or event.kind in _USES:
            waiting = []
        elif event.kind is Kind.BACKWARD:
            waiting.append(len(kept))
        kept.append(event)
    return [one for one in kept if one is not None]


def _next_stepped(events: Sequence[Event], number: int) -> str:
    """Return the optimizer that uses gradients next, if it is one."""
    using = next((one for one in events[number:] if one.kind in _USES), None)
    targets = () if using is None else using.targets or (using.thing,)
    return targets[0] if len(targets) == 1 else ""


def first_by_place(events: Iterable[Event]) -> list[Event]:
    """Return one event for each line of code, in order."""
    found: dict[tuple[str, int, str], Event] = {}
    for event in events:
        found.setdefault((event.file, event.line, event.name if event.file else event.thing), event)
    return list(found.values())


def loop_of(report: Report) -> Loop:
    """Return the loop of a report; an empty one where there is none."""
    return report.loop if report.loop is not None else Loop()


def stay_infinite(loop: Loop) -> list[Event]:
    """Return where gradients are added to infinite ones of a skipped step, which nobody has cleared."""
    return [event for _, event in loop.sequence(1) if (event.kind, event.name) == (Kind.GROWN, NOT_FINITE)]


def first_place(report: Report, family: str) -> tuple[str, int]:
    """Return the line where the first object of a family was made or seen; ("", 0) where there was none."""
    things = [thing for thing in loop_of(report).things if thing.family == family]
    return (things[0].file, things[0].line) if things else ("", 0)


def last_step(report: Report) -> tuple[str, int]:
    """Return the user's line that steps the only optimizer of a loop; ("", 0) where there are several, or none."""
    loop = loop_of(report)
    events = [e for _, e in loop.sequence(1) if e.kind in {Kind.STEP, Kind.SCALER_STEP} and not e.by]
    spots = dict.fromkeys(event.caller or event.location for event in events)
    if len(label(loop, "optimizer")) != 1 or len(spots) != 1:
        return "", 0
    file, _, line = next(iter(spots)).rpartition(":")
    return (file, int(line)) if file else ("", 0)


def led_to(report: Report, place: str) -> tuple[str, int]:
    """Return the user's line that leads to a library's; ("", 0) where that is not known."""
    callers = (e.caller for _, e in loop_of(report).sequence(1) if e.caller and e.location == place)
    file, _, line = next(callers, "").rpartition(":")
    return (file, int(line)) if file else ("", 0)


def loop_finding(
    code_and_name: str,
    severity: Severity,
    message: str,
    events: Iterable[Event],
    fix: Iterable[str] = (),
    numbers: Mapping[str, float] | None = None,
) -> Finding:
    """Return a finding about lines of a loop; a line of a library's is found at the user's that led there."""
    code, name = code_and_name.split()
    held = list(events)
    sites = tuple(site for event in held for site in _places(event))
    led = next((event for event in held if event.caller), None)
    if led is not None:
        message, fix = f"{message} (in {led.location})", in_library(code, led, list(fix))
    return Finding(code, name, "training-loop", severity, message, sites, numbers or {}, fix=tuple(fix))


def _places(event: Event) -> Iterator[Site]:
    """Yield the user's line, then the library's that it led to."""
    op = event.name or str(event.kind)
    if event.caller:
        file, _, line = event.caller.rpartition(":")
        yield Site("", op, "", Phase.STATE, "", file, int(line))
    yield Site("", op, "", Phase.STATE, "", event.file, event.line)


def unscaling(loop: Loop, optimizers: Iterable[str]) -> str:
    """Return the line that unscales, in the script's own names where its step is known."""
    wanted = set(optimizers)
    for _, event in loop.sequence(1):
        own = event.kind is Kind.SCALER_STEP and not event.caller
        if own and (not wanted or wanted & set(event.targets)) and (found := named_in_step(event.code)):
            return f"{found[1]}.unscale_({found[2]})"
    return "scaler.unscale_(optimizer)"


def named_in_step(code: str) -> re.Match[str] | None:
    """Return, of a line that calls step, what it is called of and what it is given first."""
    return re.search(r"([\w.\[\]]+)\.step\(([^(),]*)", code)


def device_of(report: Report) -> str:
    """Return the device that the loop's autocast is given, as the script writes it."""
    written = re.search(
        r"\bautocast\(\s*(?:device_type\s*=\s*)?([^\s,()=]+)\s*[,)]",
        line_of(loop_of(report), Kind.AUTOCAST, ""),
    )
    return written[1] if written else f'"{_kind_of_device(report)}"'


def _kind_of_device(report: Report) -> str:
    """Return the kind of device whose autocast the loop uses; "cuda" where a CPU stands in for it."""
    devices = {e.name.partition(":")[0] for _, e in loop_of(report).sequence(1) if e.kind is Kind.AUTOCAST}
    if "casting" in report.environment or "cuda" in devices or len(devices) != 1:
        return "cuda"
    return devices.pop() or "cuda"


def line_of(loop: Loop, kind: Kind, otherwise: str) -> str:
    """Return the script's own line for a kind of event, where its source is known."""
    lines = (e.code for _, e in loop.sequence(1) if e.kind is kind and e.code and not e.caller)
    return next(lines, otherwise)


def line_near(loop: Loop, kind: Kind, near: Event, otherwise: str) -> str:
    """Return the script's own line of the same optimizer: the backward before an event, or what comes behind it."""
    events = [event for _, event in loop.sequence(1)]
    at = events.index(near) if near in events else len(events)
    before, behind = events[:at], events[at:]
    ordered = [*before[::-1], *behind] if kind is Kind.BACKWARD else [*behind, *before]
    found = [event for event in ordered if event.kind is kind and event.code and not event.caller]
    wanted = set(near.targets or (near.thing,))
    same = (event for event in found if wanted & {event.thing, *event.targets})
    return next(same, found[0]).code if found else otherwise


def holds_scale(moment: Moment) -> bool:
    """Tell whether the gradients that an event is about may be multiplied by the loss scale."""
    targets = set(moment.event.targets)
    return bool(targets & moment.scaled if targets else moment.scaled and not moment.unscaled)


def in_scale(loop: Loop) -> str:
    """Return the first loss scale of a loop in brackets; '' where there is none."""
    scales = list(loop.first_scales.values())
    return f" ({scale_words(scales[0])})" if scales else ""
