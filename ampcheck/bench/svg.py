"""Charts as SVG: ratios with their intervals, memory by role, loss curves with the band of the seeds.

Colours are classes, so that the page's style sheet can have a dark side; a text beside every mark says the same.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ampcheck.bench.result import AGAIN, Case, Row
from ampcheck.bench.table import MIB
from ampcheck.renderers.page.elements import Html, tag

WIDTH = 720
_LEFT, _RIGHT, _ROW = 90, 110, 26
_PLOT = WIDTH - _LEFT - _RIGHT
_CURVES_HEIGHT = 240


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to places, linear or in powers."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        low, high, at = (map(math.log, (self.low, self.high, value))) if self.logarithmic else (
            self.low, self.high, value)  # fmt: skip
        return self.start + (at - low) / ((high - low) or 1.0) * (self.end - self.start)


#: Of the parts of a chart, in the light and in the dark.
ROLES = ("#3b6fb6", "#c2703d", "#3f8f5f", "#9a5fb0", "#b5484d", "#7a7a3a", "#3c8f9c", "#8a6d5a")
DARK_ROLES = ("#7aa7e0", "#e0a070", "#7cc398", "#c79ad8", "#e08a8e", "#bdbd74", "#7cc5cf", "#c4a890")
MARKS = (
    ".one{stroke:var(--dim);stroke-width:1}.interval{stroke:var(--ink);stroke-width:1.6}.mark{fill:var(--ink)}"
    ".floor{fill:var(--edge);opacity:.7}.band{opacity:.18}.curve{fill:none;stroke-width:1.8}"
    ".line0{stroke-width:6;opacity:.4}.line1{stroke-dasharray:9 5}.line2{stroke-dasharray:2 4}"
    ".line3{stroke-dasharray:9 3 2 3}.line4{stroke-dasharray:16 6}.line5{stroke-dasharray:1 8}"
)


def roles(colors: Sequence[str]) -> str:
    """Return the classes of the parts in these colours."""
    return "".join(f".role{at}{{fill:{c}}}.stroke{at}{{stroke:{c}}}" for at, c in enumerate(colors))


def standalone(chart: str) -> str:
    """Return a chart as a file of its own, on white: what a Markdown page or a paper shows."""
    colors = {"var(--ink)": "#1d2430", "var(--dim)": "#5b6472", "var(--edge)": "#d5dae2"}
    style = f"svg{{background:#fff}}text{{font:12px sans-serif;fill:#1d2430}}{MARKS}{roles(ROLES)}"
    for variable, color in colors.items():  # not every program that draws SVG knows variables
        style = style.replace(variable, color)
    opened = chart.index(">") + 1
    head = chart[:opened].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return f"{head}<style>{style}</style>{chart[opened:]}\n"


def ratios(case: Case) -> str:
    """Return the chart of how many times as fast as FP32 each precision is, '' where nothing was timed."""
    found = {row.precision: case.speedup(row) for row in case.rows}
    shown = {name: interval for name, interval in found.items() if interval is not None}
    if not shown:
        return ""
    if case.floor is not None:
        shown[AGAIN] = case.floor
    ends = [1.0] + [end for interval in shown.values() for end in (interval.low, interval.high)]
    axis = Axis(min(ends) / 1.1, max(ends) * 1.1, _LEFT, _LEFT + _PLOT, logarithmic=True)
    height = _ROW * len(shown) + 34
    parts = []
    if case.floor is not None:
        left, right = sorted((axis(case.floor.low), axis(case.floor.high)))
        parts.append(_rect(left, 4, max(right - left, 1), height - 34, "floor"))
    parts.append(_line(axis(1.0), 4, axis(1.0), height - 30, "one"))
    for at, (name, interval) in enumerate(shown.items()):
        y = 4 + _ROW * at + _ROW / 2
        parts += [
            _text(_LEFT - 8, y + 4, name, "end"),
            _line(axis(interval.low), y, axis(interval.high), y, "interval"),
            _line(axis(interval.low), y - 5, axis(interval.low), y + 5, "interval"),
            _line(axis(interval.high), y - 5, axis(interval.high), y + 5, "interval"),
            tag("circle", cx=f"{axis(interval.estimate):.1f}", cy=f"{y:.1f}", r="4.5", class_="mark"),
            _text(WIDTH - _RIGHT + 8, y + 4, f"{interval.estimate:.2f}×"),
        ]
    parts += [_text(axis(tick), height - 10, f"{tick:g}×", "middle") for tick in _round(axis, 40)]
    return _svg(height, "How many times as fast as FP32, with 95 % intervals", parts)


def memory(case: Case) -> str:
    """Return the chart of the predicted peak by role, '' where nothing was predicted."""
    splits = {row.precision: row.memory.predicted for row in case.rows if row.memory and row.memory.predicted}
    if not splits:
        return ""
    roles = list(dict.fromkeys(role for split in splits.values() for role in split.roles))
    axis = Axis(0, max(split.peak_bytes for split in splits.values()), 0, _PLOT)
    parts, height = [], _ROW * len(splits) + 52
    for at, (name, split) in enumerate(splits.items()):
        y, x = 4 + _ROW * at, float(_LEFT)
        parts.append(_text(_LEFT - 8, y + 17, name, "end"))
        for number, role in enumerate(roles):
            width = axis(split.roles.get(role, 0))
            if width > 0:
                tip = f"{role}: {split.roles[role] / MIB:.2f} MiB"
                parts.append(_rect(x, y + 4, width, _ROW - 8, f"role{number % 8}", tip))
            x += width
        parts.append(_text(WIDTH - _RIGHT + 8, y + 17, f"{split.peak_bytes / MIB:.4g} MiB"))
    parts += _keys(roles, "role", height - 34)
    return _svg(height, "Predicted CUDA peak by what the memory is for", parts)


def curves(case: Case, steps: int = 0) -> str:
    """Return the chart of the training losses over so many steps: the mean of the seeds and the band they span."""
    bands = {row.precision: _band(row) for row in case.rows if row.courses}
    bands = {name: band for name, band in bands.items() if len(band) > 1}
    finite = [value for band in bands.values() for point in band for value in point if math.isfinite(value)]
    if not finite:
        return ""
    logarithmic = min(finite) > 0 and max(finite) / min(finite) > 20  # noqa: PLR2004  # lines would lie flat
    bottom = _CURVES_HEIGHT - 60
    y = Axis(min(finite), max(finite), bottom, 8, logarithmic)
    longest = max(map(len, bands.values()))
    x = Axis(0, longest - 1, _LEFT, _LEFT + _PLOT)
    parts = [_line(_LEFT, bottom, _LEFT + _PLOT, bottom, "one")]
    for at, (_, band) in enumerate(bands.items()):
        points = [(index, point) for index, point in enumerate(band) if all(map(math.isfinite, point))]
        if not points:
            continue
        outline = [(index, point[2]) for index, point in points]
        outline += [(index, point[0]) for index, point in reversed(points)]
        path = " ".join(f"{x(index):.1f},{y(value):.1f}" for index, value in outline)
        parts.append(tag("polygon", points=path, class_=f"band role{at % 8}"))
        path = " ".join(f"{x(index):.1f},{y(point[1]):.1f}" for index, point in points)
        parts.append(tag("polyline", points=path, class_=_curve(at)))
    parts += [_text(_LEFT - 8, y(value) + 4, f"{value:.3g}", "end") for value in _round(y, 24)]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        place = _LEFT + share * _PLOT
        parts.append(_line(place, bottom, place, bottom + 4, "one"))
        parts.append(_text(place, bottom + 16, f"{round(1 + share * ((steps or longest) - 1))}", "middle"))
    parts.append(_text(WIDTH - _RIGHT + 22, bottom + 16, "step"))
    parts += _keys(list(bands), "", _CURVES_HEIGHT - 28)
    return _svg(_CURVES_HEIGHT, "Training loss: mean and range of the seeds", parts)


def batches(series: Mapping[str, Mapping[int, float]], title: str) -> str:
    """Return the chart of a speed-up against the batch size, a line for each precision; "" for less than two sizes."""
    sizes = sorted({size for line in series.values() for size in line})
    values = [value for line in series.values() for value in line.values()]
    if len(sizes) < 2 or min(values) <= 0:  # noqa: PLR2004  # a line has two ends
        return ""
    bottom = _CURVES_HEIGHT - 60
    x = Axis(sizes[0], sizes[-1], _LEFT, _LEFT + _PLOT, logarithmic=True)
    y = Axis(min(*values, 1.0) / 1.1, max(*values, 1.0) * 1.1, bottom, 8, logarithmic=True)
    parts = [_line(_LEFT, bottom, _LEFT + _PLOT, bottom, "one")]
    parts.append(_line(_LEFT, y(1.0), _LEFT + _PLOT, y(1.0), "one"))
    for at, line in enumerate(series.values()):
        path = " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in sorted(line.items()))
        parts.append(tag("polyline", points=path, class_=_curve(at)))
    parts += [_text(_LEFT - 8, y(value) + 4, f"{value:.3g}×", "end") for value in _round(y, 24)]
    parts += [_text(x(size), bottom + 16, str(size), "middle") for size in sizes]
    parts.append(_text(WIDTH - _RIGHT + 22, bottom + 16, "batch size"))
    parts += _keys(list(series), "", _CURVES_HEIGHT - 28)
    return _svg(_CURVES_HEIGHT, title, parts)


def _band(row: Row) -> list[tuple[float, float, float]]:
    """Return lowest, mean and highest loss of the seeds at each step that all of them reached."""
    reached = zip(*(course.losses for course in row.courses), strict=False)
    return [(min(losses), math.fsum(losses) / len(losses), max(losses)) for losses in reached if _all(losses)]


def _all(losses: Sequence[float]) -> bool:
    return all(map(math.isfinite, losses))


def _round(axis: Axis, room: float) -> list[float]:
    """Return round numbers on an axis, the roundest first taken, with so much room between two."""
    kept: list[float] = []
    for value in _rounds(axis):
        if axis.low <= value <= axis.high and all(abs(axis(value) - axis(other)) > room for other in kept):
            kept.append(value)
    return sorted(kept)


def _rounds(axis: Axis) -> Iterable[float]:
    """Yield the numbers that people put on an axis, from the roundest on."""
    if axis.logarithmic:
        powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
        yield from (digit * 10.0**power for digit in (1, 5, 2, 3, 8, 1.5, 1.2) for power in powers)
        return
    step = 10.0 ** math.floor(math.log10((axis.high - axis.low) or 1.0))
    for unit in (step, step / 2, step / 4):
        yield from (unit * count for count in range(math.ceil(axis.low / unit), int(axis.high // unit) + 1))


def _curve(at: int) -> str:
    """Return the classes of a line: the first is broad and pale, so that others that lie on it are seen."""
    return f"curve stroke{at % 8} line{0 if not at else (at - 1) % 5 + 1}"


def _keys(names: Sequence[str], style: str, y: float) -> Iterable[Html]:
    """Yield the legend, two lines at most: a box of a style for each name, or without one its curve."""
    x = float(_LEFT)
    for at, name in enumerate(names):
        width = (26 if style else 52) + 7 * len(name)
        if x + width > WIDTH:
            x, y = float(_LEFT), y + 18
        yield _rect(x, y, 10, 10, f"{style}{at % 8}") if style else _line(x, y + 5, x + 28, y + 5, _curve(at))
        yield _text(x + (14 if style else 34), y + 9, name)
        x += width


def _svg(height: float, title: str, parts: Iterable[Html]) -> str:
    box = f"0 0 {WIDTH} {height:g}"
    return tag("svg", tag("title", title), parts, viewBox=box, role="img", aria_label=title)


def _rect(x: float, y: float, width: float, height: float, style: str, tip: str = "") -> Html:
    places = {"x": x, "y": y, "width": width, "height": height}
    inside = tag("title", tip) if tip else None
    return tag("rect", inside, **{name: f"{at:.1f}" for name, at in places.items()}, class_=style)


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> Html:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return tag("line", **{name: f"{at:.1f}" for name, at in ends.items()}, class_=style)


def _text(x: float, y: float, words: str, anchor: str = "start") -> Html:
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)
