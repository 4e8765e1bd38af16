"""The loss scale of a training loop over its steps: the words for it, and the curve."""

from collections.abc import Iterator, Sequence
from math import ceil, inf, isfinite, log2

from ampcheck.renderers.page.elements import Html, tag
from ampcheck.renderers.shapes import drawing, line, text
from ampcheck.values.loop import Loop, LoopObject, ScaleEvent
from ampcheck.values.report import Report
from ampcheck.values.wording import count, location, plural, power, scale_words

#: The curve's box, and the room at its sides for labels.
WIDTH, HEIGHT = 860, 130
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 10, 26
_LABELS = 5  #: labels of scales that fit one above another
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


def extent(loop: Loop) -> str:
    """Return how many steps were seen, recorded and skipped."""
    steps = f"{plural(loop.steps, 'step')} seen, {count(len(loop.recorded))} recorded in full"
    return f"{steps}, {count(loop.skipped)} skipped" if loop.first_scales else steps


def spans(loop: Loop) -> Iterator[tuple[str, float, float]]:
    """Yield each scaler with its first and its last scale."""
    for label, first in loop.first_scales.items():
        yield label, first, next((e.after for e in reversed(loop.scales) if e.scaler == label), first)


def span_words(loop: Loop, label: str, first: float, last: float) -> str:
    """Return where a scale began and ended, and after how many steps it let one through."""
    events = [event for event in loop.scales if event.scaler == label]
    if not events:
        return f"{scale_words(first)} throughout"
    return f"{scale_words(first)} → {scale_words(last)}, {_settled(loop, label)}"


def _settled(loop: Loop, label: str) -> str:
    """Return after how many of its steps a scale settled, and how many were skipped later."""
    searched, skips = loop.settled(label), loop.skips(label)
    if searched is None:
        return "never settled"
    later = len(skips) - searched
    if later and skips[-1] >= (len(loop.updates(label)) or loop.steps) - 1:
        return "not settled: its last step was skipped"
    settled = f"settled after {plural(searched, 'step')}" if searched else "settled from the start"
    return f"{settled}, {count(later)} skipped later" if later else settled


def happened(event: ScaleEvent) -> str:
    """Return in a word what happened to a step or to the scale after it."""
    if event.skipped:
        return "skipped"
    return "grew" if event.after > event.before else "fell" if event.after < event.before else "changed"


def change(event: ScaleEvent) -> str:
    """Return the scale before and after."""
    return f"{scale_words(event.before)} → {scale_words(event.after)}"


def described(thing: LoopObject) -> tuple[str, str, str]:
    """Return the class of an object, its settings, and where it was made or first seen, as they came."""
    settings = ", ".join(
        f"{name}={_setting(name, value)}" for name, value in thing.settings.items() if value != ""
    )
    return thing.kind, settings, location(thing.file, thing.line)


def _setting(name: str, value: str | float | bool) -> str:  # noqa: FBT001  # as it was asked for
    scale = name == "init_scale" and isinstance(value, (int, float))
    return scale_words(float(value)) if scale else str(value)


def curve(loop: Loop, label: str, **attributes: str) -> Html | None:
    """Return the scale of one scaler as a line of steps; None where it never changed."""
    events = [event for event in loop.scales if event.scaler == label]
    if not events:
        return None
    scales = [loop.first_scales[label], *(event.after for event in events)]
    levels = _levels(scales)
    last = max(1, loop.steps, *(event.step + 1 for event in events))
    about = f"{label}: {scale_words(scales[0])} to {scale_words(scales[-1])} in {plural(loop.steps, 'step')}"
    return tag(
        "svg",
        *_frame(levels, last),
        tag("path", class_="line", d=_steps(events, scales, levels, last)),
        _skips(events, last),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=about,
        **attributes,
    )


def course_svg(report: Report) -> str:
    """Return the loss scale of every scaler that changed it, one below the other; '' where none did."""
    seen = report.loop
    labels = [label for label, *_ in spans(seen) if curve(seen, label)] if seen else []
    if seen is None or not labels:
        return ""
    height = (HEIGHT + _GAP) * len(labels)
    parts = [part for index, label in enumerate(labels) for part in _placed(seen, label, index)]
    return drawing("the loss scale over the steps", WIDTH, height, _STYLE, parts)


def _placed(seen: Loop, label: str, index: int) -> Iterator[Html]:
    top = (HEIGHT + _GAP) * index
    drawn = curve(seen, label, y=str(top + _GAP), width=str(WIDTH), height=str(HEIGHT))
    yield text(8, top + 16, f"Loss scale of {label}; marks: skipped steps")
    if drawn is not None:
        yield drawn


def _levels(scales: Sequence[float]) -> tuple[int, int]:
    """Return the powers of two that the axis reaches from and to."""
    exponents = [log2(scale) for scale in scales if isfinite(scale) and scale > 0]
    low, high = int(min(exponents, default=0) // 1), ceil(max(exponents, default=0))
    return low - 1, high + 1


def _steps(events: Sequence[ScaleEvent], scales: Sequence[float], levels: tuple[int, int], last: int) -> str:
    """Return the line: a scale holds until the update that changes it."""
    parts = [f"M{_LEFT} {_y(scales[0], levels):.1f}"]
    for event, scale in zip(events, scales[1:], strict=True):
        parts.append(f"H{_x(event.step + 1, last):.1f}V{_y(scale, levels):.1f}")
    return "".join(parts) + f"H{WIDTH - _RIGHT}"


def _skips(events: Sequence[ScaleEvent], last: int) -> Html | None:
    marks = [f"M{_x(event.step, last):.1f} {HEIGHT - _BOTTOM}v-9" for event in events if event.skipped]
    return tag("path", class_="skips", d="".join(marks)) if marks else None


def _frame(levels: tuple[int, int], last: int) -> Iterator[Html]:
    low, high = levels
    every = max(1, ceil((high - low - 1) / _LABELS))
    for exponent in range(low + 1, high, every):
        y = _height(exponent, levels)
        yield line(_LEFT, y, WIDTH - _RIGHT, y, "grid")
        yield text(_LEFT - 8, y + 4, power(exponent), "end")
    base = HEIGHT - _BOTTOM
    yield line(_LEFT, base, WIDTH - _RIGHT, base, "grid")
    yield text(_LEFT, base + 18, "step 0")
    yield text(WIDTH - _RIGHT, base + 18, f"step {count(last)}", "end")


def _x(step: int, last: int) -> float:
    return _LEFT + (WIDTH - _RIGHT - _LEFT) * (min(max(step, 0), last) / last)


def _y(scale: float, levels: tuple[int, int]) -> float:
    """Return the height of a scale; one that is no positive number lies at the edge."""
    low, high = levels
    return _height(log2(scale) if isfinite(scale) and scale > 0 else high if scale == inf else low, levels)


def _height(exponent: float, levels: tuple[int, int]) -> float:
    low, high = levels
    return _TOP + (HEIGHT - _BOTTOM - _TOP) * (high - exponent) / (high - low)
