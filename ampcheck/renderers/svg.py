"""Pictures as SVG: the exponent landscape and the curve over loss scales, in the light or dark of the page."""

from collections.abc import Iterable, Sequence
from math import log10

from ampcheck.diagnose.landscape import Column, Landscape, LandscapeRow, Zone, landscape
from ampcheck.diagnose.tables import CurvePoint, scale_curve
from ampcheck.renderers.drawing import NONE, ZONES, cells, module_name, zone_name
from ampcheck.renderers.page.elements import Html
from ampcheck.renderers.shapes import drawing, line, path, rect, text
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase
from ampcheck.values.wording import percent, power

WIDTH = 860
#: One character of the labels.
_CHARACTER = 6.7
_LABEL = 34  #: characters that a module's name gets at most
_SHARES = 74  #: the column of figures at the right
_ROW, _BAR = 17, 13
_HEAD, _FOOT = 62, 30
_MARGIN = 12
_MAX_ROWS, _MAX_COLUMNS = 40, 96
_TICK = 8  #: powers of two between two labels of the axis
#: The curve's plot, and the smallest share that its axis tells from nothing.
_PLOT_LEFT, _PLOT_TOP, _PLOT_HEIGHT = 64, 78, 190
_FLOOR = -5

_STYLE = """
svg { background: #ffffff; color: #1f2328; font: 12px system-ui, sans-serif; }
text { fill: currentColor; } .name { font: 11px ui-monospace, monospace; } .bold { font-weight: 600; }
.faint { fill: #59636e; } .axis { stroke: #d1d9e0; } .used { stroke: #1f2328; stroke-dasharray: 4 3; }
.underflowed { --ink: #cf222e; }
.subnormal { --ink: #9a6700; } .normal { --ink: #1a7f37; } .overflow { --ink: #8250df; }
.bar, .word { fill: var(--ink); } .ground { fill: var(--ink); opacity: .07; } .band { fill: var(--ink); opacity: .2; }
.line { fill: none; stroke: var(--ink); stroke-width: 2; } .overflow.line { stroke-dasharray: 6 3; }
.subnormal.line { stroke-dasharray: 2 3; }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117; color: #f0f6fc; } .faint { fill: #9198a1; } .axis { stroke: #3d444d; }
.used { stroke: #f0f6fc; } .underflowed { --ink: #f85149; } .subnormal { --ink: #d29922; } .normal { --ink: #3fb950; }
.overflow { --ink: #ab7df8; } .ground { opacity: .12; } .band { opacity: .3; }
}
"""


def landscape_svg(report: Report, phase: Phase) -> str:
    """Return where the numbers of each layer lie against what the format holds; '' where there are none."""
    picture = landscape(report, phase, _MAX_ROWS, _MAX_COLUMNS)
    if not picture.rows:
        return ""
    what = "Gradients" if phase is Phase.BACKWARD else "Activations"
    scale = (
        f" at loss scale {power(report.log2_scale)}" if phase is Phase.BACKWARD and report.log2_scale else ""
    )
    about = f"{what} by powers of two: what {report.precision} holds{scale}"
    longest = max(cells(module_name(row.label, _LABEL)) for row in picture.rows)
    left = _MARGIN + longest * _CHARACTER + 10
    step = (WIDTH - left - _SHARES) / len(picture.columns)
    bottom = _HEAD + len(picture.rows) * _ROW
    body = [text(_MARGIN, 22, about, None, "bold"), text(WIDTH - _MARGIN, 50, "outside", "end", "faint")]
    body += _zones(picture, left, step, bottom)
    for index, row in enumerate(picture.rows):
        body += _row(row, picture, (left, _HEAD + index * _ROW, step))
    body += _axis(picture.columns, left, step, bottom)
    return drawing(about, WIDTH, bottom + _FOOT, _STYLE, body)


def _zones(picture: Landscape, left: float, step: float, bottom: float) -> Iterable[Html]:
    """Yield the grounds of the zones with their names, as far as these fit."""
    start = 0
    for zone, columns in picture.zones:
        x, width = left + start * step, len(columns) * step
        yield rect(x, _HEAD - 4, width, bottom - _HEAD + 8, f"{zone} ground")
        yield text(x + width / 2, 50, zone_name(ZONES[zone], width / _CHARACTER), "middle", f"{zone} word")
        start += len(columns)


def _row(row: LandscapeRow, picture: Landscape, at: tuple[float, float, float]) -> Iterable[Html]:
    left, top, step = at
    base = top + _ROW - 3
    yield text(left - 8, base - 2, module_name(row.label, _LABEL), "end", "name")
    peak = max(row.counts)
    for index, (count, column) in enumerate(zip(row.counts, picture.columns, strict=True)):
        if count:
            # What is there is seen, be it one element of a million.
            height = max(1.0, _BAR * count / peak)
            about = f"{_octaves(column)}: {percent(count / row.nonzero)}"
            x, y = left + index * step + 0.5, base - height
            yield rect(x, y, step - 1, height, f"{column.zone} bar", about)
    share = row.outside(picture.columns)
    style = "underflowed word" if share else "faint"
    yield text(WIDTH - _MARGIN, base - 2, percent(share) if share else NONE, "end", style)


def _octaves(column: Column) -> str:
    return power(column.low) if column.low == column.high else f"{power(column.low)} … {power(column.high)}"


def _axis(columns: Sequence[Column], left: float, step: float, bottom: float) -> Iterable[Html]:
    free = 0.0
    for index, column in enumerate(columns):
        exponent = -(-column.low // _TICK) * _TICK
        x = left + index * step
        if exponent <= column.high and x >= free:
            yield line(x, bottom + 4, x, bottom + 9, "axis")
            yield text(x, bottom + 22, power(exponent), "middle", "faint")
            free = x + 7 * _CHARACTER


def curve_svg(report: Report) -> str:
    """Return which share of the gradient elements underflows at each loss scale; '' where there are none."""
    points = scale_curve(report)
    if not points[0].nonzero:
        return ""
    about = f"What {report.precision} does to the gradient elements at each loss scale, predicted from the FP32 run"
    body = [text(_MARGIN, 22, about, None, "bold"), *_frame(points)]
    for number, zone in enumerate(points[0].zones):
        left = _PLOT_LEFT + number * 150
        mark = line(left, 42, left + 24, 42, f"{zone} line")
        body += [mark, text(left + 30, 46, ZONES[zone][0]), *_line(zone, points)]
    x = _x(report.log2_scale - points[0].log2_scale, points)
    if report.log2_scale in [point.log2_scale for point in points]:
        body.append(line(x, _PLOT_TOP, x, _PLOT_TOP + _PLOT_HEIGHT, "used"))
        side = "end" if x > WIDTH / 2 else "start"
        body.append(text(x, _PLOT_TOP - 7, f"used: {power(report.log2_scale)}", side, "bold"))
    return drawing(about, WIDTH, _PLOT_TOP + _PLOT_HEIGHT + _FOOT, _STYLE, body)


def _frame(points: Sequence[CurvePoint]) -> Iterable[Html]:
    """Yield the axes: shares from all to next to nothing, and the loss scales."""
    right = WIDTH - _MARGIN - 16
    for exponent in range(_FLOOR, 1):
        y = _y(10.0**exponent if exponent > _FLOOR else 0.0)
        label = f"{10.0 ** (exponent + 2):g} %" if exponent > _FLOOR else "none"
        yield line(_PLOT_LEFT, y, right, y, "axis")
        yield text(_PLOT_LEFT - 8, y + 4, label, "end", "faint")
    for index, point in enumerate(points):
        if not point.log2_scale % 4:
            word = power(point.log2_scale)
            yield text(_x(index, points), _PLOT_TOP + _PLOT_HEIGHT + 20, word, "middle", "faint")


def _line(zone: Zone, points: Sequence[CurvePoint]) -> Iterable[Html]:
    """Yield a line through what is certain, under a band up to what is possible."""
    whole, bounds = points[0].nonzero, [point.zones[zone] for point in points]
    low = [(_x(index, points), _y(bound.low / whole)) for index, bound in enumerate(bounds)]
    high = [(_x(index, points), _y(bound.high / whole)) for index, bound in enumerate(bounds)]
    if any(not bound.exact for bound in bounds):
        yield path([*low, *reversed(high)], f"{zone} band", end="z")
    yield path(low, f"{zone} line")


def _x(index: int, points: Sequence[CurvePoint]) -> float:
    return _PLOT_LEFT + index * (WIDTH - _MARGIN - 16 - _PLOT_LEFT) / (len(points) - 1)


def _y(share: float) -> float:
    """Return the height of a share: each power of ten takes the same room, nothing lies on the axis."""
    depth = max(log10(share), _FLOOR + 0.2) if share else _FLOOR
    return _PLOT_TOP + _PLOT_HEIGHT * depth / _FLOOR
