"""The lines at which a loss scale is made, given or lowered."""

from collections.abc import Mapping
from typing import Any

from ampcheck.diagnose.rules.loop_state import loop_of
from ampcheck.diagnose.rules.makers import maker_of
from ampcheck.values.loop import GIVEN, Event, Kind, Loop
from ampcheck.values.maker import LOWERS_SCALE
from ampcheck.values.report import Report


def updated(report: Report, label: str) -> Event:
    """Return the line of a scaler's own update, the line that gives a scaler its scale, or where it was made.

    Of a scale that the script keeps by hand it is where it falls, or the backward that it multiplies.
    """
    loop = loop_of(report)
    thing = loop.thing(label)
    if thing is None and (falls := maker_of(report, LOWERS_SCALE)) is not None:
        return Event(Kind.UPDATE, label, "update", file=falls.file, line=falls.line)
    if thing is None and (by_hand := multiplied_by_hand(loop)):
        return by_hand[0]
    file, _, line = own_update(thing.settings if thing else {}).rpartition(":")
    if file:
        return Event(Kind.UPDATE, label, "update", file=file, line=int(line))
    return gives_scale(loop, label) or made(loop, label)


def own_update(settings: Mapping[str, Any]) -> str:
    """Return "file:line" at which a scaler's own update sets the scale, else where it begins; '' of torch's own."""
    return str(settings.get("gives_at") or settings.get("updates_at", ""))


def gives_scale(loop: Loop, label: str) -> Event | None:
    """Return the update() of torch's scaler that is given a scale: without one it halves the scale after a skip."""
    thing = loop.thing(label)
    if thing is None or thing.kind != "GradScaler" or thing.settings.get("backoff_factor") == 1.0:
        return None
    updates = (event for _, event in loop.sequence(1) if event.kind is Kind.UPDATE)
    return next((event for event in updates if event.thing == label and event.line), None)


def made(loop: Loop, label: str) -> Event:
    """Return the line where a scaler was made."""
    thing = loop.thing(label)
    file, line = (thing.file, thing.line) if thing else ("", 0)
    return Event(Kind.SCALE, label, "GradScaler" if thing else "", file=file, line=line)


def lowered_by(loop: Loop, label: str) -> Event | None:
    """Return the first update() that is given a scale."""
    updates = (event for _, event in loop.sequence(1) if event.kind is Kind.UPDATE and event.name == GIVEN)
    return next((event for event in updates if event.thing == label and event.line), None)


def multiplied_by_hand(loop: Loop) -> list[Event]:
    """Return the backwards of losses that the script multiplies itself."""
    return [event for _, event in loop.sequence(1) if event.kind is Kind.BACKWARD and event.by_hand]
