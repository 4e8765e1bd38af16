"""Charts as SVG: ratios with their intervals, memory by role, loss curves with the band of the seeds.

Colours are classes, so that the page's style sheet can have a dark side; a text beside every mark says the same.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from ampcheck.bench.result import AGAIN, Case, Row
from ampcheck.bench.table import MIB
from ampcheck.wording import clean

WIDTH = 720
_LEFT, _RIGHT, _ROW = 90, 110, 26
_PLOT = WIDTH - _LEFT - _RIGHT
_CURVES_HEIGHT = 240
_TICKS = 5


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
            f'<circle cx="{axis(interval.estimate):.1f}" cy="{y:.1f}" r="4.5" class="mark"/>',
            _text(WIDTH - _RIGHT + 8, y + 4, f"{interval.estimate:.2f}×"),
        ]
    parts += [_text(axis(tick), height - 10, f"{tick:g}×", "middle") for tick in _powers(axis)]
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


def curves(case: Case) -> str:
    """Return the chart of the training losses: the mean of the seeds and the band they span."""
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
        parts.append(f'<polygon points="{path}" class="band role{at % 8}"/>')
        path = " ".join(f"{x(index):.1f},{y(point[1]):.1f}" for index, point in points)
        parts.append(f'<polyline points="{path}" class="curve stroke{at % 8} dash{at % 3}"/>')
    parts += [_text(_LEFT - 8, y(value) + 4, f"{value:.3g}", "end") for value in _levels(y)]
    parts += [_text(_LEFT, bottom + 16, "first step"), _text(_LEFT + _PLOT, bottom + 16, "last step", "end")]
    parts += _keys(list(bands), "role", _CURVES_HEIGHT - 28)
    return _svg(_CURVES_HEIGHT, "Training loss: mean and range of the seeds", parts)


def _band(row: Row) -> list[tuple[float, float, float]]:
    """Return lowest, mean and highest loss of the seeds at each step that all of them reached."""
    reached = zip(*(course.losses for course in row.courses), strict=False)
    return [(min(losses), math.fsum(losses) / len(losses), max(losses)) for losses in reached if _all(losses)]


def _all(losses: Sequence[float]) -> bool:
    return all(map(math.isfinite, losses))


def _powers(axis: Axis) -> list[float]:
    """Return round ratios that lie on an axis."""
    round_ones = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1, 1.25, 1.5, 2, 3, 5, 10, 20, 50)
    inside = [value for value in round_ones if axis.low <= value <= axis.high]
    kept: list[float] = []
    for value in sorted(inside, key=lambda value: abs(math.log(value))):
        if all(abs(axis(value) - axis(other)) > 40 for other in kept):  # noqa: PLR2004  # wider than a label
            kept.append(value)
    return sorted(kept)


def _levels(axis: Axis) -> list[float]:
    share = [at / (_TICKS - 1) for at in range(_TICKS)]
    if axis.logarithmic:
        return [axis.low * (axis.high / axis.low) ** part for part in share]
    return [axis.low + (axis.high - axis.low) * part for part in share]


def _keys(names: Sequence[str], style: str, y: float) -> Iterable[str]:
    """Yield the legend, two lines at most."""
    x = float(_LEFT)
    for at, name in enumerate(names):
        width = 26 + 7 * len(name)
        if x + width > WIDTH:
            x, y = float(_LEFT), y + 18
        yield _rect(x, y, 10, 10, f"{style}{at % 8}")
        yield _text(x + 14, y + 9, name)
        x += width


def _svg(height: float, title: str, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _rect(x: float, y: float, width: float, height: float, style: str, tip: str = "") -> str:
    inside = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{style}">{inside}</rect>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(clean(words))}</text>'
