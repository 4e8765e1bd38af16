"""The training loop of the page: what the script used, and the loss scale over its steps."""

from collections.abc import Sequence

from ampcheck.renderers.page.elements import Html, tag
from ampcheck.renderers.scale_curve import (
    LOOP_OBJECTS,
    change,
    curve,
    described,
    extent,
    happened,
    span_words,
    spans,
)
from ampcheck.values.loop import Loop, ScaleEvent
from ampcheck.values.report import Report
from ampcheck.values.wording import clean, count, location, plural

#: Changes of the scale shown at once, and those behind a line to open; further ones are counted.
_FIRST, _REST = 12, 500


def loop(report: Report) -> Html | None:
    """Return what a script's loop did; None where a step was audited by itself."""
    seen = report.loop
    if seen is None:
        return None
    return tag(
        "section",
        tag("h2", "Training loop ", tag("small", extent(seen)), id="loop-title"),
        _things(seen),
        [_course(seen, *span) for span in spans(seen)],
        *_changes(seen.scales, several=len(seen.first_scales) > 1),
        id="loop",
        aria_labelledby="loop-title",
    )


def _things(seen: Loop) -> Html | None:
    if not seen.things:
        return None
    parts: list[Html] = []
    for thing in seen.things[:LOOP_OBJECTS]:
        kind, settings, at = described(thing)
        parts += [
            tag("dt", clean(thing.label)),
            tag(
                "dd",
                tag("code", clean(kind)),
                tag("span", f" {clean(settings)}", class_="muted") if settings else None,
                tag("code", f" {at}", class_="place") if at else None,
            ),
        ]
    if len(seen.things) > LOOP_OBJECTS:
        parts += [tag("dt", "others"), tag("dd", count(len(seen.things) - LOOP_OBJECTS))]
    return tag("dl", parts, class_="things")


def _course(seen: Loop, label: str, first: float, last: float) -> Html:
    drawn = curve(seen, label, class_="course")
    shown = f"Loss scale of {clean(label)}: {span_words(seen, label, first, last)}"
    return tag("figure", tag("figcaption", shown), drawn)


def _changes(events: Sequence[ScaleEvent], *, several: bool) -> tuple[Html | None, ...]:
    if not events:
        return ()
    rows = [_row(event, several=several) for event in events[: _FIRST + _REST]]
    rest = rows[_FIRST:]
    left = len(events) - len(rows)
    return (
        _table(rows[:_FIRST], "Changes of the loss scale", several=several),
        tag(
            "details",
            tag("summary", plural(len(events) - _FIRST, "more change")),
            _table(rest, "All other changes of the loss scale", several=several),
            tag("p", f"and {count(left)} more, in the JSON report", class_="muted") if left else None,
        )
        if rest
        else None,
    )


def _row(event: ScaleEvent, *, several: bool) -> Html:
    cause = event.cause
    shown = ("", "", "", "")
    if cause is not None:
        more = f" and {count(cause.others)} more" if cause.others else ""
        spot = location(cause.file, cause.line)
        shown = (clean(cause.parameter) + more, clean(cause.layer), clean(cause.op), spot)
    return tag(
        "tr",
        tag("td", count(event.step), class_="number"),
        tag("td", clean(event.scaler)) if several else None,
        tag("td", happened(event), class_="warn" if event.skipped else None),
        tag("td", change(event)),
        [tag("td", part, class_="path") for part in shown],
    )


def _table(rows: list[Html], label: str, *, several: bool) -> Html:
    titles = ("What", "Loss scale", "Gradient not finite", "Layer", "Begins in", "Line")
    heads = [tag("th", title, scope="col") for title in (*(["Scaler"] if several else []), *titles)]
    step = tag("th", "Step", scope="col", class_="number")
    table = tag("table", tag("thead", tag("tr", step, heads)), tag("tbody", rows), class_="plain")
    return tag("div", table, class_="wide", tabindex="0", role="region", aria_label=label)
