"""The training loop of a script in Markdown: what it used, and the loss scale over its steps."""

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from ampcheck.renderers.drawing import NONE
from ampcheck.renderers.markup import bullets, code, inline, prose, table
from ampcheck.renderers.page.elements import Html, tag
from ampcheck.renderers.scale_curve import (
    HEIGHT,
    LOOP_OBJECTS,
    WIDTH,
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
from ampcheck.values.wording import ELLIPSIS, clean, count, location, plural

#: Changes of the loss scale that are shown one by one.
CHANGES = 40
_GAP = 24  #: above each curve, for the name of its scaler
_STYLE = """
svg { background: #ffffff; color: #1f2328; font: 12px system-ui, sans-serif; }
text { fill: #59636e; } .grid { stroke: #d1d9e0; fill: none; } .line { stroke: #1f6fb5; fill: none; stroke-width: 2; }
.skips { stroke: #cf222e; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117; color: #f0f6fc; } text { fill: #9198a1; } .grid { stroke: #3d444d; }
.line { stroke: #5aa7e8; } .skips { stroke: #f85149; }
}
"""


def course_svg(report: Report) -> str:
    """Return the loss scale of every scaler that changed it, one below the other; '' where none did."""
    seen = report.loop
    labels = [label for label, *_ in spans(seen) if curve(seen, label)] if seen else []
    if seen is None or not labels:
        return ""
    height = (HEIGHT + _GAP) * len(labels)
    drawn = tag(
        "svg",
        tag("style", Html(_STYLE)),
        [part for index, label in enumerate(labels) for part in _placed(seen, label, index)],
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        width=WIDTH,
        height=height,
        role="img",
        aria_label="the loss scale over the steps",
    )
    return f"{drawn}\n"


def _placed(seen: Loop, label: str, index: int) -> Iterator[Html]:
    top = (HEIGHT + _GAP) * index
    drawn = curve(seen, label, y=str(top + _GAP), width=str(WIDTH), height=str(HEIGHT))
    yield tag("text", f"Loss scale of {clean(label)}; marks: skipped steps", x=8, y=top + 16)
    if drawn is not None:
        yield drawn


def section(report: Report, file: str) -> Iterator[str]:
    """Yield what a script's loop did; its curve where it lies in a file."""
    seen = report.loop
    if seen is None:
        return
    yield f"## Training loop: {extent(seen)}"
    shown = [_thing(*described(thing), thing.label) for thing in seen.things[:LOOP_OBJECTS]]
    if len(seen.things) > LOOP_OBJECTS:
        shown.append(f"and {count(len(seen.things) - LOOP_OBJECTS)} more")
    for label, first, last in spans(seen):
        shown.append(f"loss scale of {inline(label)}: {span_words(seen, label, first, last)}")
    if shown:
        yield bullets(shown)
    if file:
        yield f"![the loss scale over the steps](<{quote(file)}>)"
    yield from _changes(seen.scales)


def _thing(kind: str, settings: str, at: str, label: str) -> str:
    words = [f"{prose(label)}: {code(kind)}", inline(settings), code(at) if at else ""]
    return " · ".join(filter(None, words))


def _changes(events: Sequence[ScaleEvent]) -> Iterator[str]:
    if not events:
        return
    titles = ("step>", "scaler", "what", "loss scale", "gradient not finite", "layer", "begins in", "line")
    yield table(titles, map(_cells, events[:CHANGES]))
    if len(events) > CHANGES:
        yield f"{ELLIPSIS} and {plural(len(events) - CHANGES, 'more change')}"


def _cells(event: ScaleEvent) -> list[str]:
    head = [count(event.step), inline(event.scaler), happened(event), change(event)]
    cause = event.cause
    if cause is None:
        return [*head, NONE, NONE, NONE, NONE]
    more = f" and {count(cause.others)} more" if cause.others else ""
    spot = location(cause.file, cause.line)
    shown = (code(cause.parameter) + more, code(cause.layer), inline(cause.op), code(spot))
    return [*head, *(part or NONE for part in shown)]
