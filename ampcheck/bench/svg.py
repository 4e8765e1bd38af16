"""Charts as SVG: ratios with their intervals, memory by role, training, speed-ups against the batch size."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ampcheck.bench import lines
from ampcheck.bench.lines import Labels, Point
from ampcheck.bench.result import AGAIN, Case, Row
from ampcheck.bench.shapes import CHARACTER, KINDS, LEFT, PLOT, RIGHT, WIDTH, Axis, round_numbers, svg
from ampcheck.bench.table import MIB
from ampcheck.renderers.page.elements import Html, tag
from ampcheck.renderers.shapes import line, rect, text

_ROW = 26
_NUMBERED = 14  #: a part of a bar that is narrower has no room for its number


def charts(case: Case, steps: int) -> dict[str, str]:
    """Return the charts of a case that have something to show; its training took so many steps."""
    found = {"memory": memory(case), "speed": ratios(case)}
    found |= {"training": curves(case, steps), "metric": metrics(case)}
    return {kind: chart for kind, chart in found.items() if chart}


def ratios(case: Case) -> str:
    """Return the chart of how many times as fast as FP32 each precision is, '' where nothing was timed."""
    found = {row.precision: case.speedup(row) for row in case.rows}
    shown = {name: interval for name, interval in found.items() if interval is not None}
    if not shown:
        return ""
    if case.floor is not None:
        shown[AGAIN] = case.floor
    ends = [1.0] + [end for interval in shown.values() for end in (interval.low, interval.high)]
    axis = Axis(min(ends) / 1.1, max(ends) * 1.1, LEFT, LEFT + PLOT, logarithmic=True)
    bottom = _ROW * len(shown) + 8
    parts = []
    if case.floor is not None:
        left, right = sorted((axis(case.floor.low), axis(case.floor.high)))
        parts.append(rect(left, 4, max(right - left, 1), bottom - 4, "floor"))
    for tick in round_numbers(axis, 40):
        parts.append(line(axis(tick), 4, axis(tick), bottom, "one" if tick == 1 else "grid"))
        parts.append(text(axis(tick), bottom + 16, f"{tick:g}×", "middle"))
    for at, (name, interval) in enumerate(shown.items()):
        y = 4 + _ROW * at + _ROW / 2
        parts += [
            text(LEFT - 8, y + 4, name, "end"),
            line(axis(interval.low), y, axis(interval.high), y, "interval"),
            *(line(axis(end), y - 5, axis(end), y + 5, "interval") for end in (interval.low, interval.high)),
            tag("circle", cx=f"{axis(interval.estimate):.1f}", cy=f"{y:.1f}", r="4.5", class_="mark"),
            text(WIDTH - RIGHT + 8, y + 4, f"{interval.estimate:.2f}×"),
        ]
    return svg(bottom + 26, "How many times as fast as FP32, with 95 % intervals", parts)


def memory(case: Case) -> str:
    """Return the chart of the predicted peak by role, '' where nothing was predicted."""
    splits, roles = case.splits, case.roles
    if not splits:
        return ""
    axis = Axis(0, max(split.peak_bytes for split in splits.values()), 0, PLOT)
    bottom = _ROW * len(splits) + 4
    parts = list(_sizes(axis, bottom))
    for at, (name, split) in enumerate(splits.items()):
        y, x = 4 + _ROW * at, float(LEFT)
        parts.append(text(LEFT - 8, y + 17, name, "end"))
        for number, role in enumerate(roles):
            width = axis(split.roles.get(role, 0))
            if width > 0:
                tip = f"{role}: {split.roles[role] / MIB:.2f} MiB"
                parts.append(rect(x, y + 4, width, _ROW - 8, f"part role{number % KINDS}", tip))
            if width >= _NUMBERED:
                parts.append(text(x + width / 2, y + 17, str(number + 1), "middle", "inside"))
            x += width
        parts.append(text(WIDTH - RIGHT + 8, y + 17, f"{split.peak_bytes / MIB:.4g} MiB"))
    keys = list(_keys(roles, bottom + 30))
    words = "Predicted CUDA peak by what the memory is for"
    return svg(bottom + 30 + 18 * len(keys), words, [*parts, *keys])


def _sizes(axis: Axis, bottom: float) -> Iterable[Html]:
    """Yield the numbered lines of an axis of bytes."""
    in_mib = Axis(axis.low / MIB, axis.high / MIB, LEFT, LEFT + PLOT)
    for tick in round_numbers(in_mib, 52):
        yield line(in_mib(tick), 4, in_mib(tick), bottom, "grid")
        yield text(in_mib(tick), bottom + 16, f"{tick:g}", "middle")
    yield text(LEFT + PLOT + 8, bottom + 16, "MiB", style="dim")


def _keys(names: Sequence[str], y: float) -> Iterable[Html]:
    """Yield the lines of a legend: a numbered box for each name."""
    held: list[Html] = []
    x = float(LEFT)
    for at, name in enumerate(names):
        width = 36 + CHARACTER * len(name)
        if x + width > WIDTH:
            yield tag("g", held)
            held, x, y = [], float(LEFT), y + 18
        held.append(rect(x, y, 18, 14, f"role{at % KINDS}"))
        held.append(text(x + 9, y + 11, str(at + 1), "middle", "inside"))
        held.append(text(x + 23, y + 11, name))
        x += width
    yield tag("g", held)


def curves(case: Case, steps: int = 0) -> str:
    """Return the chart of the training losses over so many steps: the mean of the seeds and the band they span."""
    bands = {
        row.precision: _band(row, [range(1, len(course.losses) + 1) for course in row.courses], "losses")
        for row in case.rows
    }
    longest = max((len(band) for band in bands.values()), default=0)
    if longest and steps > longest:  # long runs are thinned
        share = (steps - 1) / max(longest - 1, 1)
        bands = {
            name: [replace(point, x=1 + (point.x - 1) * share) for point in band]
            for name, band in bands.items()
        }
    said = Labels("Training loss: mean and range of the seeds", "step", "training loss")
    return lines.chart({name: band for name, band in bands.items() if len(band) > 1}, said)


def metrics(case: Case) -> str:
    """Return the chart of the metric on the validation batches as training goes on."""
    bands = {
        row.precision: _band(row, [course.metric_steps for course in row.courses], "metrics")
        for row in case.rows
    }
    said = Labels("Metric on validation batches: mean and range of the seeds", "step", "metric")
    return lines.chart({name: band for name, band in bands.items() if band}, said)


def batches(series: Mapping[str, Mapping[int, float]], title: str) -> str:
    """Return the chart of a speed-up against the batch size, a line for each precision; "" for less than two sizes."""
    shown = {
        name: [Point(size, value, value, value) for size, value in sorted(line.items()) if value > 0]
        for name, line in series.items()
    }
    said = Labels(title, "batch size", "times as fast as FP32", "×", 1.0, logarithmic=True)
    return lines.chart({name: line for name, line in shown.items() if line}, said)


def _band(row: Row, places: Sequence[Sequence[int]], values: str) -> list[Point]:
    """Return lowest, mean and highest value of the seeds at each step that all of them reached."""
    if not row.courses:
        return []
    reached = zip(*(getattr(course, values) for course in row.courses), strict=False)
    return [
        Point(step, math.fsum(found) / len(found), min(found), max(found))
        for step, found in zip(places[0], reached, strict=False)
        if all(map(math.isfinite, found))
    ]
