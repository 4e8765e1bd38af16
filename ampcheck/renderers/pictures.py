"""The terminal's pictures: the exponent landscape and the curve over loss scales."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ampcheck.diagnose.landscape import Landscape, LandscapeRow, Zone, landscape
from ampcheck.diagnose.tables import CurvePoint, scale_curve
from ampcheck.renderers.drawing import NONE, TIMES, ZONES, bar, bars, cells, module_name, ticks, zone_name
from ampcheck.values.plan import DEFAULT_LOG2_SCALE
from ampcheck.values.report import Report
from ampcheck.values.stats import Bounds
from ampcheck.values.trace import Phase
from ampcheck.values.wording import percent, power, short_count

if TYPE_CHECKING:
    from rich.text import Text

#: The line between two zones.
EDGE = "┆"
_ZONE_STYLES = {Zone.UNDERFLOWED: "red", Zone.SUBNORMAL: "yellow", Zone.NORMAL: "green", Zone.OVERFLOW: "red"}
#: Powers of two from one label of the axis to the next.
_TICK = 8
#: Columns beside the landscape's names and picture: indent, gaps, edges between zones, share.
_MARGIN = 16
#: Powers of two from one loss scale that is written out to the next.
_CURVE_STEP = 4


def drawn_landscape(report: Report, phase: Phase, width: int) -> list["Text"]:
    """Return the landscape of a phase in so many columns; nothing where there is nothing to see."""
    room, names = width - _MARGIN, width // 4
    picture = landscape(report, phase, max_columns=room - names)
    if not picture.rows:
        return []
    longest = max(cells(module_name(row.label, width)) for row in picture.rows)
    if longest < names and any(column.low < column.high for column in picture.columns):
        picture = landscape(report, phase, max_columns=room - longest)
    return landscape_lines(picture, min(longest, room - len(picture.columns)))


def drawn_curve(report: Report) -> list["Text"]:
    """Return the curve over loss scales; nothing where none of them matters."""
    points = scale_curve(report)
    if not points[0].nonzero or (report.precision != "fp16" and not points[0].underflowed.high):
        return []
    return curve_lines(points, report.log2_scale, DEFAULT_LOG2_SCALE, _CURVE_STEP)


def landscape_lines(picture: Landscape, label_width: int) -> list["Text"]:
    """Return the landscape: a line of zones, a line for each row, and the axis."""
    from rich.text import Text

    pad = " " * (label_width + 2)
    head = Text(pad)
    for index, (zone, columns) in enumerate(picture.zones):
        head.append(EDGE if index else "", "dim")
        head.append(zone_name(ZONES[zone], len(columns)).center(len(columns)), f"dim {_ZONE_STYLES[zone]}")
    head.append("  outside", "dim")
    lines = [head, *(_row(row, picture, label_width) for row in picture.rows)]
    lines.append(Text(pad + _axis(picture), "dim"))
    return lines


def _row(row: LandscapeRow, picture: Landscape, label_width: int) -> "Text":
    from rich.text import Text

    line = Text()
    name = module_name(row.label, label_width)
    line.append(name)
    line.append(" " * (label_width - line.cell_len + 2))
    drawn = bars(row.counts, row.nonzero)
    start = 0
    for index, (zone, columns) in enumerate(picture.zones):
        line.append(EDGE if index else "", "dim")
        line.append(drawn[start : start + len(columns)], _ZONE_STYLES[zone])
        start += len(columns)
    share = row.outside(picture.columns)
    line.append(
        f"  {percent(share) if share else NONE:>7}", _ZONE_STYLES[Zone.UNDERFLOWED] if share else "dim"
    )
    return line


def _axis(picture: Landscape) -> str:
    """Return the powers of two under the columns where they begin."""
    positions: list[tuple[int, str]] = []
    at = 0
    for _, columns in picture.zones:
        for column in columns:
            exponent = -(-column.low // _TICK) * _TICK
            if exponent <= column.high:
                positions.append((at, power(exponent)))
            at += 1
        at += 1
    return ticks(positions, at + 4)


def curve_lines(points: Sequence[CurvePoint], used: int, default: int, step: int) -> list["Text"]:
    """Return the curve over loss scales: a drawing, the figures under it, and marks for two scales."""
    from rich.text import Text

    cell = 8
    per = cell // step
    label = 12
    lines = [Text(" " * label + "".join(power(p.log2_scale).ljust(cell) for p in points[::step]), "dim")]
    drawing = Text("underflow".ljust(label))
    for point in points:
        over = point.overflowed.low > 0
        block = TIMES if over else bar(point.underflowed.low, max(point.nonzero, 1), point.nonzero)
        drawing.append(block * per, "red" if over or point.underflowed.low else "green")
    lines.append(drawing)
    lines.append(_figures("", label, [_share(p.underflowed, p.nonzero) for p in points[::step]], cell))
    subnormal = [_share(p.subnormal, p.nonzero) for p in points[::step]]
    lines.append(_figures("subnormal", label, subnormal, cell))
    overflowed = [_elements(p.overflowed) for p in points[::step]]
    lines.append(_figures("overflow", label, overflowed, cell))
    same = "▲ used, also GradScaler's default"
    marks = {used: same} if used == default else {used: "▲ used", default: "△ GradScaler's default"}
    lines.append(_marks(points[0].log2_scale, marks, label, per))
    return lines


def _figures(name: str, label: int, figures: Sequence[str], cell: int) -> "Text":
    from rich.text import Text

    line = Text(name.ljust(label))
    for figure in figures:
        line.append(figure.ljust(cell), "dim" if figure == NONE else "")
    return line


def _share(bounds: Bounds, whole: int) -> str:
    return percent(bounds.low / whole) if bounds.low else NONE


def _elements(bounds: Bounds) -> str:
    if not bounds.high:
        return NONE
    return short_count(bounds.low) if bounds.exact else f"≥ {short_count(bounds.low)}"


def _marks(first: int, marks: dict[int, str], label: int, per: int) -> "Text":
    """Return the texts under their loss scales; one that would run into the next gives way to its right."""
    from rich.text import Text

    line = ""
    for scale, text in sorted(marks.items()):
        line = line.ljust(label + (scale - first) * per) + text + "  "
    return Text(line.rstrip(), "bold")
