"""A loop as plain JSON values and back."""

from dataclasses import asdict, fields
from operator import index
from typing import Any

from ampcheck.saved.fields import Json, number
from ampcheck.values.loop import Cause, Event, Kind, Loop, LoopObject, ScaleEvent
from ampcheck.values.report import Rank

_EVENT = tuple((field.name, field.default) for field in fields(Event))


def loop_json(loop: Loop | None) -> Json | None:
    """Return a loop as JSON values; None where no loop was watched."""
    if loop is None:
        return None
    return {
        "rounds": [[_event(event) for event in events] for events in loop.rounds],
        "order": [list(run) for run in loop.order],
        "things": [asdict(thing) for thing in loop.things],
        "scales": [_scale(event) for event in loop.scales],
        "first_scales": {label: number(scale) for label, scale in loop.first_scales.items()},
        "steps": loop.steps,
        "recorded": list(loop.recorded),
        "children": loop.children,
        **({"scaling": loop.scaling} if loop.scaling else {}),
    }


def read_loop(saved: Json | None) -> Loop | None:
    """Return the loop that `loop_json` wrote."""
    if saved is None:
        return None
    return Loop(
        rounds=tuple(tuple(_read_event(item) for item in events) for events in saved["rounds"]),
        order=tuple((index(which), index(times)) for which, times in saved["order"]),
        things=tuple(LoopObject(**item) for item in saved["things"]),
        scales=tuple(_read_scale(item) for item in saved["scales"]),
        first_scales={label: float(scale) for label, scale in saved["first_scales"].items()},
        steps=index(saved["steps"]),
        recorded=tuple(map(index, saved["recorded"])),
        children=index(saved["children"]),
        scaling=saved.get("scaling", ""),
    )


def rank_json(rank: Rank) -> Json:
    """Return a rank as JSON values."""
    held: Json = {"name": rank.name, "steps": rank.steps, "reference_steps": rank.reference_steps}
    if rank.first_scales:
        held["first_scales"] = {label: number(scale) for label, scale in rank.first_scales.items()}
    return {**held, "scales": [_scale(event) for event in rank.scales]} if rank.scales else held


def read_rank(item: Json) -> Rank:
    """Return the rank that `rank_json` wrote."""
    first = {label: float(scale) for label, scale in item.get("first_scales", {}).items()}
    scales = tuple(_read_scale(event) for event in item.get("scales", ()))
    return Rank(item["name"], index(item["steps"]), index(item["reference_steps"]), first, scales)


def _event(event: Event) -> Json:
    held = {name: getattr(event, name) for name, default in _EVENT if getattr(event, name) != default}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in held.items()}


def _read_event(item: Json) -> Event:
    read: dict[str, Any] = {**item, "kind": Kind(item["kind"])}
    if "targets" in item:
        read["targets"] = tuple(item["targets"])
    return Event(**read)


def _scale(event: ScaleEvent) -> Json:
    return {**asdict(event), "before": number(event.before), "after": number(event.after)}


def _read_scale(item: Json) -> ScaleEvent:
    cause = item["cause"]
    return ScaleEvent(
        index(item["step"]),
        item["scaler"],
        float(item["before"]),
        float(item["after"]),
        item["skipped"],
        None if cause is None else Cause(**cause),
    )
