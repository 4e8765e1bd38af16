"""What the charts are drawn with: axes and their round numbers, marks, the style of light and dark.

Colours are classes, so that one drawing serves a page, a file of its own and the dark side of both. No chart needs its
colours: lines differ by dashes and marks, parts of a bar by numbers.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ampcheck.renderers.page.elements import Html, tag

#: Narrow enough for a column of a paper, and for text that can be read on a phone.
WIDTH = 520
LEFT, RIGHT = 84, 106
PLOT = WIDTH - LEFT - RIGHT
FONT = 13
#: Of a character in the mean.
CHARACTER = 7.2
KINDS = 8  #: of colours and marks


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


#: Of the parts of a chart, in the light with white numbers on them, and in the dark with black ones.
LIGHT = ("#2f62a8", "#a9562a", "#2f7a4c", "#8a4aa3", "#a83f45", "#6a6a2c", "#2a7682", "#78583f")
DARK = ("#7aa7e0", "#e0a070", "#7cc398", "#c79ad8", "#e08a8e", "#bdbd74", "#7cc5cf", "#c4a890")
_DASHES = ("", "9 4", "2 3", "9 3 2 3", "16 5", "1 6", "5 2 1 2 1 2", "12 2 4 2")


def _colors(ink: str, dim: str, edge: str, paper: str, kinds: Sequence[str]) -> str:
    parts = "".join(f".role{at}{{fill:{c}}}.stroke{at}{{stroke:{c}}}" for at, c in enumerate(kinds))
    return (
        f"svg text{{fill:{ink}}}svg .dim{{fill:{dim}}}.one,.lead{{stroke:{dim}}}.grid{{stroke:{edge}}}"
        f".floor{{fill:{edge}}}.interval{{stroke:{ink}}}.mark{{fill:{ink}}}"
        f"svg .inside{{fill:{paper}}}.part{{stroke:{paper}}}{parts}"
    )


STYLE = (
    f"svg text{{font:{FONT}px system-ui,sans-serif}}svg .inside{{font-size:11px;font-weight:600}}"
    ".one,.grid,.part{stroke-width:1}.lead{stroke-width:.7}.interval{stroke-width:1.6}.floor{opacity:.7}"
    ".band{opacity:.16}.curve{fill:none;stroke-width:1.8}.point{fill:none;stroke-width:1.4}"
    + "".join(f".line{at}{{stroke-dasharray:{dash}}}" for at, dash in enumerate(_DASHES) if dash)
    + _colors("#1d2430", "#5b6472", "#d5dae2", "#fff", LIGHT)
    + f"@media(prefers-color-scheme:dark){{{_colors('#e4e8ee', '#9aa4b2', '#333b47', '#14181f', DARK)}}}"
)
_GROUND = "svg{background:#fff}@media(prefers-color-scheme:dark){svg{background:#14181f}}"


def standalone(chart: str) -> str:
    """Return a chart as a file of its own, on a ground: what a Markdown page or a paper shows."""
    opened = chart.index(">") + 1
    head = chart[:opened].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return f"{head}<style>{_GROUND}{STYLE}</style>{chart[opened:]}\n"


def round_numbers(axis: Axis, room: float, *, whole: bool = False) -> list[float]:
    """Return round numbers on an axis, the roundest first taken, with so much room between two."""
    kept: list[float] = []
    for value in _rounds(axis, whole=whole):
        if axis.low <= value <= axis.high and all(abs(axis(value) - axis(other)) > room for other in kept):
            kept.append(value)
    return sorted(kept)


def _rounds(axis: Axis, *, whole: bool) -> Iterable[float]:
    """Yield the numbers that people put on an axis, from the roundest on."""
    if axis.logarithmic:
        powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
        yield from (digit * 10.0**power for digit in (1, 5, 2, 3, 8, 1.5, 1.2) for power in powers)
        return
    step = 10.0 ** math.floor(math.log10((axis.high - axis.low) or 1.0))
    for unit in (step, step / 2, step / 4):
        if not whole or unit == round(unit) > 0:
            yield from (
                unit * count for count in range(math.ceil(axis.low / unit), int(axis.high // unit) + 1)
            )


def spread(places: Sequence[float], room: float, low: float, high: float) -> list[float]:
    """Return places near the wanted ones, in their order, with so much room between two, as far as there is room."""
    room = min(room, (high - low) / max(1, len(places) - 1))
    order = sorted(range(len(places)), key=lambda at: places[at])
    found = [0.0] * len(places)
    last = low - room
    for at in order:
        last = found[at] = max(places[at], last + room)
    last = high + room
    for at in reversed(order):
        last = found[at] = min(found[at], last - room)
    return found


def mark(kind: int, x: float, y: float) -> Html:
    """Return the mark of a line: a shape of its own for each of eight."""
    shape, style = kind % KINDS, f"point stroke{kind % KINDS}"
    if shape == 0:
        return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="3.6", class_=style)
    corners = {
        1: ((-3.4, -3.4), (3.4, -3.4), (3.4, 3.4), (-3.4, 3.4)),
        2: ((0, -4.4), (4.2, 3.4), (-4.2, 3.4)),
        3: ((0, -4.8), (4.8, 0), (0, 4.8), (-4.8, 0)),
        4: ((0, 4.4), (4.2, -3.4), (-4.2, -3.4)),
        5: ((-5, -1.6), (5, -1.6), (5, 1.6), (-5, 1.6)),
        6: ((-1.6, -5), (1.6, -5), (1.6, 5), (-1.6, 5)),
        7: ((-4.6, -4.4), (4.6, -4.4), (0, 0), (4.6, 4.4), (-4.6, 4.4), (0, 0)),
    }[shape]
    return tag("polygon", points=" ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in corners), class_=style)


def svg(height: float, title: str, parts: Iterable[Html]) -> str:
    """Return a drawing."""
    box = f"0 0 {WIDTH} {height:g}"
    return tag("svg", tag("title", title), parts, viewBox=box, role="img", aria_label=title)


def title(chart: str) -> Html:
    """Return what a drawing is called."""
    return Html(chart.partition("<title>")[2].partition("</title>")[0])
