"""The landscape of the page: a still picture of the layers, which the script replaces by one that moves."""

from collections.abc import Iterator, Mapping, Sequence
from math import log10

from ampcheck.diagnose.landscape import Column, Landscape, Zone, landscape, operand_landscape
from ampcheck.renderers.drawing import ZONES, module_name, zone_name
from ampcheck.renderers.page.elements import Html, tag
from ampcheck.renderers.shapes import line, rect, text
from ampcheck.values.recipe_audit import RecipeResult
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase
from ampcheck.values.wording import percent, plural, power

#: The same of an operand: a recipe's format saturates.
OPERAND_ZONES = {**ZONES, Zone.UNDERFLOWED: ("zero",), Zone.OVERFLOW: ("cut off", "cut")}
#: Shares are drawn in so many shades, from one element in a hundred thousand to all.
_SHADES = 8
_FAINTEST = -5
#: Rows and columns of the still picture, and their size.
_ROWS, _COLUMNS = 40, 72
_ROW, _STEP = 15, 8
_LABELS, _HEAD, _FOOT, _SHARES = 250, 24, 24, 64
_CHARACTERS = 36
_CHARACTER = 7
_TICK = 8  #: powers of two from one label of the axis to the next


def still(report: Report, phase: Phase) -> Html | None:
    """Return a picture of a phase's low-precision results; None where there are none."""
    picture = landscape(report, phase, _ROWS, _COLUMNS)
    return _drawn(picture, _about(report, phase, picture)) if picture.rows else None


def operands(result: RecipeResult) -> Iterator[Html]:
    """Yield a picture of the scaled operands that each format of a recipe was given."""
    for name in dict.fromkeys(one.format for one in result.operands):
        picture = operand_landscape(result.operands, name, _ROWS, _COLUMNS)
        if picture.rows:
            scaled = f"Operands in {name}, scaled by {result.outcome.recipe}, by powers of two"
            about = f"{scaled}: {_shares(picture, OPERAND_ZONES)}"
            drawn = _drawn(picture, about, OPERAND_ZONES, "still stays")
            yield tag("figure", tag("figcaption", about), drawn)


def _drawn(
    picture: Landscape, about: str, names: Mapping[Zone, tuple[str, ...]] = ZONES, kind: str = "still"
) -> Html:
    width = _LABELS + _STEP * len(picture.columns) + _SHARES
    bottom = _HEAD + _ROW * len(picture.rows)
    return tag(
        "svg",
        *_zones(picture, bottom, names),
        *_cells(picture),
        *_labels(picture),
        *_axis(picture.columns, bottom),
        viewBox=f"0 0 {width} {bottom + _FOOT}",
        role="img",
        aria_label=about,
        class_=kind,
    )


def shade(share: float) -> int:
    """Return how dark a share is drawn: 1 to the number of shades; the same number of shades for each power of ten."""
    return max(1, min(_SHADES, 1 + int(_SHADES * (1 - log10(share) / _FAINTEST))))


def _about(report: Report, phase: Phase, picture: Landscape) -> str:
    """Return what the picture shows for those who cannot see it."""
    what = "Gradients" if phase is Phase.BACKWARD else "Activations"
    scale = f" at loss scale {power(report.log2_scale)}" if phase is Phase.BACKWARD else ""
    rows = plural(len(picture.rows), "row")
    held = f"held in {report.precision}{scale}"
    return f"{what} by powers of two in {rows}, {held}: {_shares(picture, ZONES)}"


def _shares(picture: Landscape, names: Mapping[Zone, tuple[str, ...]]) -> str:
    whole = sum(row.nonzero for row in picture.rows)
    shares = []
    for zone, words in names.items():
        inside = sum(row.share(zone, picture.columns) * row.nonzero for row in picture.rows)
        shares.append(f"{words[0]} {percent(inside / whole)}")
    return ", ".join(shares)


def _zones(picture: Landscape, bottom: int, names: Mapping[Zone, tuple[str, ...]]) -> Iterator[Html]:
    start = 0
    for zone, columns in picture.zones:
        x, width = _LABELS + _STEP * start, _STEP * len(columns)
        yield rect(x, _HEAD, width, bottom - _HEAD, f"ground {zone}")
        name = zone_name(names[zone], width / _CHARACTER)
        if name:
            yield text(x + width / 2, _HEAD - 8, name, "middle", f"word {zone}")
        start += len(columns)


def _cells(picture: Landscape) -> Iterator[Html]:
    """Yield one path for all cells of a zone and shade: a short line each, as thick as a row."""
    paths: dict[tuple[Zone, int], list[str]] = {}
    for index, row in enumerate(picture.rows):
        y = _HEAD + _ROW * index + _ROW / 2
        for at, (count, column) in enumerate(zip(row.counts, picture.columns, strict=True)):
            if count:
                cell = f"M{_LABELS + _STEP * at} {y:g}h{_STEP}"
                paths.setdefault((column.zone, shade(count / row.nonzero)), []).append(cell)
    for (zone, dark), cells in sorted(paths.items()):
        yield tag("path", class_=f"cells {zone} shade{dark}", d="".join(cells))


def _labels(picture: Landscape) -> Iterator[Html]:
    for index, row in enumerate(picture.rows):
        y = _HEAD + _ROW * index + _ROW - 4
        yield text(_LABELS - 8, y, module_name(row.label, _CHARACTERS), "end", "name")
        outside = row.outside(picture.columns)
        if outside:
            x = _LABELS + _STEP * len(picture.columns) + 6
            yield text(x, y, percent(outside), style="outside")


def _axis(columns: Sequence[Column], bottom: int) -> Iterator[Html]:
    free = 0
    for index, column in enumerate(columns):
        exponent = -(-column.low // _TICK) * _TICK
        x = _LABELS + _STEP * index
        if exponent <= column.high and x >= free:
            yield line(x, bottom, x, bottom + 4, "tick")
            yield text(x, bottom + 17, power(exponent), "middle", "axis")
            free = x + 6 * _CHARACTER
