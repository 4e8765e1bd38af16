"""A chart of lines: numbered axes, a band around each line, its name at its end."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ampcheck.bench.shapes import CHARACTER, KINDS, LEFT, WIDTH, Axis, mark, round_numbers, spread, svg
from ampcheck.renderers.page.elements import Html, tag
from ampcheck.renderers.shapes import line, text

_HEIGHT, _TOP, _BOTTOM = 260, 30, 216
#: of a line, shifted from those of the others: where lines lie on each other, all of them are seen
_MARKS = 6
_SAMPLE, _LEAD = 24, 14  #: of a line beside its name, and between the line's end and that
_STEEP = 20  #: highest over lowest from which a linear axis would let lines lie flat


@dataclass(frozen=True, slots=True)
class Point:
    """A value at a place, with the lowest and the highest of the runs that it is the mean of."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Labels:
    """What a chart is called, and its axes; `one` is a value with a line of its own."""

    title: str
    across: str
    up: str
    unit: str = ""
    one: float | None = None
    logarithmic: bool = False  #: across


def chart(lines: Mapping[str, Sequence[Point]], said: Labels) -> str:
    """Return the chart of some lines; "" where there is nothing to draw."""
    lines = {
        name: [p for p in points if all(map(math.isfinite, (p.y, p.low, p.high)))]
        for name, points in lines.items()
    }
    points = [point for line in lines.values() for point in line]
    if len({point.x for point in points}) < 2:  # noqa: PLR2004  # a line has two ends
        return ""
    right = WIDTH - _LEAD - _SAMPLE - 14 - CHARACTER * max(map(len, lines))
    x = Axis(min(p.x for p in points), max(p.x for p in points), LEFT, right, said.logarithmic)
    y = _upward([end for p in points for end in (p.low, p.high)], said)
    places = sorted({p.x for p in points}) if said.logarithmic else round_numbers(x, 44, whole=True)
    parts = [*_axes(x, y, places, said)]
    for at, own in enumerate(lines.values()):
        parts += _line(at, len(lines), [(x(p.x), y(p.y), y(p.low), y(p.high)) for p in own])
    parts += _names({name: (x(own[-1].x), y(own[-1].y)) for name, own in lines.items() if own}, lines, right)
    return svg(_HEIGHT, said.title, parts)


def _upward(values: Sequence[float], said: Labels) -> Axis:
    low, high = min(values), max(values)
    if said.one is not None:
        return Axis(min(low, said.one) / 1.1, max(high, said.one) * 1.1, _BOTTOM, _TOP, logarithmic=True)
    if low > 0 and high / low > _STEEP:
        return Axis(low, high, _BOTTOM, _TOP, logarithmic=True)
    rim = 0.04 * (high - low) or 0.5
    return Axis(low - rim, high + rim, _BOTTOM, _TOP)


def _axes(x: Axis, y: Axis, places: Iterable[float], said: Labels) -> Iterable[Html]:
    for value in round_numbers(y, 26):
        yield line(x.start, y(value), x.end, y(value), "grid")
        yield text(LEFT - 8, y(value) + 4, f"{value:.3g}{said.unit}", "end")
    if said.one is not None:
        yield line(x.start, y(said.one), x.end, y(said.one), "one")
    yield line(x.start, _BOTTOM, x.end, _BOTTOM, "one")
    for value in places:
        yield line(x(value), _BOTTOM, x(value), _BOTTOM + 4, "one")
        yield text(x(value), _BOTTOM + 18, f"{value:g}", "middle")
    yield text(8, 16, said.up, style="dim")
    yield text((x.start + x.end) / 2, _BOTTOM + 37, said.across, "middle", "dim")


def _line(at: int, count: int, places: Sequence[tuple[float, float, float, float]]) -> Iterable[Html]:
    """Yield a line with its band, and marks at places of its own."""
    if any(low != high for _, _, low, high in places):
        rim = [(x, high) for x, _, _, high in places] + [(x, low) for x, _, low, _ in reversed(places)]
        yield tag("polygon", points=_path(rim), class_=f"band role{at % KINDS}")
    yield tag("polyline", points=_path([(x, y) for x, y, _, _ in places]), class_=_style(at))
    every = math.ceil(len(places) / _MARKS)
    for x, y, _, _ in places[at * every // count :: every]:
        yield mark(at, x, y)


def _names(
    ends: Mapping[str, tuple[float, float]], lines: Mapping[str, object], right: float
) -> Iterable[Html]:
    """Yield the names at the ends of their lines, as near as they can be without lying on each other."""
    wanted = spread([y for _, y in ends.values()], 17, _TOP + 4, _BOTTOM - 4)
    order, begin = [*lines], right + _LEAD
    for (name, (x, y)), place in zip(ends.items(), wanted, strict=True):
        at = order.index(name)
        yield line(x + 4, y, begin - 2, place, "lead")
        yield line(begin, place, begin + _SAMPLE, place, _style(at))
        yield mark(at, begin + _SAMPLE / 2, place)
        yield text(begin + _SAMPLE + 6, place + 4, name)


def _style(at: int) -> str:
    return f"curve stroke{at % KINDS} line{at % KINDS}"


def _path(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
