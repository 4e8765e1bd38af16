"""The loss scale of the page: a slider under the curve of what every scale would do, and the figures as a table."""

from collections.abc import Iterator, Sequence
from math import isfinite, log2, log10

from ampcheck.diagnose.landscape import Zone
from ampcheck.diagnose.tables import SCALES, CurvePoint, best_scale
from ampcheck.renderers.drawing import NONE, ZONES
from ampcheck.renderers.page.elements import Html, tag, titled, wide
from ampcheck.renderers.page.picture import still
from ampcheck.values.plan import DEFAULT_LOG2_SCALE
from ampcheck.values.report import Report
from ampcheck.values.stats import Bounds
from ampcheck.values.trace import Phase
from ampcheck.values.wording import count, percent, power

#: The curve's box; the page stretches it to the width of the slider.
_WIDTH, _HEIGHT = 1000, 120
#: The power of ten at which shares end that the curve tells from none.
_FLOOR = -5
_LABEL_STEP = 4
_HINT = "Point at a layer to read its numbers; click it, or press Enter, to see its histograms and lines."


def scale_range(report: Report) -> range:
    """Return the loss scales the slider reaches: those that GradScaler does, and the one in use."""
    used = report.log2_scale
    return range(min(SCALES.start, used), max(SCALES.stop, used + 1))


def picture(report: Report, points: Sequence[CurvePoint]) -> Html:
    """Return the section with the landscape, the curve and the slider."""
    figures = [_figure(report, phase) for phase in (Phase.FORWARD, Phase.BACKWARD)]
    about = f"every layer held in {report.precision}, in order of execution, by powers of two"
    shown = any(figures)
    return titled(
        "picture",
        "Where the numbers lie",
        about,
        tag("div", [figure for figure in figures if figure], class_="panels") if shown else None,
        _legend() if shown else tag("p", f"No result was held in {report.precision}.", class_="muted"),
        tag("p", _HINT, id="pointed", class_="scripted muted") if shown else None,
        _scale(report, points) if points[0].nonzero else None,
        _table(points, report.log2_scale) if points[0].nonzero else None,
    )


def _figure(report: Report, phase: Phase) -> Html | None:
    drawn = still(report, phase)
    if drawn is None:
        return None
    title = "Forward: activations" if phase is Phase.FORWARD else "Backward: gradients, before the loss scale"
    return tag("figure", tag("figcaption", title), drawn, class_=f"panel {phase}", id=f"panel-{phase}")


def _legend() -> Html:
    names = [
        tag("li", tag("span", class_=f"swatch {zone}", aria_hidden="true"), words[0])
        for zone, words in ZONES.items()
    ]
    dark = "The stronger the colour, the larger the share of the layer's elements, as the FP32 run has them."
    return tag("ul", names, tag("li", dark), class_="legend")


def _scale(report: Report, points: Sequence[CurvePoint]) -> Html:
    point = next(point for point in points if point.log2_scale == report.log2_scale)
    first, last = points[0].log2_scale, points[-1].log2_scale
    slider = tag(
        "input",
        type="range",
        id="scale",
        min=first,
        max=last,
        step=1,
        value=report.log2_scale,
        aria_describedby="at-scale",
        aria_valuetext=f"2 to the power of {report.log2_scale}",
    )
    output = tag("output", power(report.log2_scale), id="scale-name")
    label = tag("label", "Loss scale ", output, for_="scale")
    readout = tag("dl", *_readout(point), id="at-scale", class_="readout")
    curve = tag("div", _curve(points, report.log2_scale), slider, _labels(points), class_="curve")
    head = tag("div", label, *_marks(report, points), class_="scale-head")
    return tag("div", head, tag("div", readout, curve, class_="scale-body"), class_="scale")


def _marks(report: Report, points: Sequence[CurvePoint]) -> Iterator[Html]:
    """Yield a button for each scale worth a look."""
    named = {report.log2_scale: ["used"]}
    advised = _advised(report, points)
    if advised is not None:
        named.setdefault(advised, []).append("advised" if report.plan else "least underflow")
    named.setdefault(DEFAULT_LOG2_SCALE, []).append("GradScaler's default")
    for scale, words in named.items():
        if points[0].log2_scale <= scale <= points[-1].log2_scale:
            text = f"{power(scale)} {', '.join(words)}"
            yield tag("button", text, type="button", value=scale, class_="scripted jump")


def _advised(report: Report, points: Sequence[CurvePoint]) -> int | None:
    """Return the plan's scale, or without a plan the one at which the fewest elements underflow."""
    scaler = report.plan.scaler if report.plan else None
    if scaler is not None and isfinite(scaler.init_scale) and scaler.init_scale > 0:
        return round(log2(scaler.init_scale))
    best = best_scale(points) if report.plan is None else None
    return best.log2_scale if best else None


def _readout(point: CurvePoint) -> Iterator[Html]:
    for zone, bounds in point.zones.items():
        swatch = tag("span", class_=f"swatch {zone}", aria_hidden="true")
        share = tag("span", _share(bounds, point.nonzero), class_="share")
        figures = tag("dd", share, " ", tag("span", span(bounds), class_="muted count"))
        yield tag("div", tag("dt", swatch, ZONES[zone][0]), figures, id=f"at-{zone}")
    about = f"of {count(point.nonzero)} non-zero gradient elements, predicted from the FP32 run"
    yield tag("div", tag("dt", "Shares", class_="unseen"), tag("dd", about, class_="muted"))


def span(bounds: Bounds) -> str:
    """Return a count that is known to lie between two numbers."""
    return count(bounds.low) if bounds.exact else f"{count(bounds.low)} to {count(bounds.high)}"


def _share(bounds: Bounds, whole: int) -> str:
    return percent(bounds.low / whole) if whole else percent(0)


def _curve(points: Sequence[CurvePoint], used: int) -> Html:
    body = [
        tag("path", class_="grid", d=f"M0 {_y(10.0**exponent):g}H{_WIDTH}")
        for exponent in range(_FLOOR + 1, 1)
    ]
    for zone in (Zone.SUBNORMAL, Zone.UNDERFLOWED, Zone.OVERFLOW):
        heights = [_y(point.zones[zone].low / point.nonzero) for point in points]
        line = "M" + "L".join(f"{_x(index, points):g} {y:.1f}" for index, y in enumerate(heights))
        body.append(tag("path", class_=f"area {zone}", d=f"{line}V{_HEIGHT}H0z"))
        body.append(tag("path", class_=f"line {zone}", d=line))
    x = _x(used - points[0].log2_scale, points)
    body.append(tag("path", class_="used", d=f"M{x:g} 0V{_HEIGHT}"))
    body.append(tag("path", class_="now scripted", id="now", d=f"M{x:g} 0V{_HEIGHT}"))
    axis = [
        tag("span", percent(10.0**exponent), class_=f"y y{-exponent}") for exponent in (0, -1, -2, -3, -4)
    ]
    drawn = tag(
        "svg",
        body,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label="Shares of the gradient elements that underflow, become subnormal or overflow at each loss scale; "
        "the figures are in the table below",
    )
    return tag("div", axis, drawn, class_="plot")


def _x(index: int, points: Sequence[CurvePoint]) -> float:
    return _WIDTH * index / max(len(points) - 1, 1)


def _y(share: float) -> float:
    """Return the height of a share: the same room for each power of ten, none at the very bottom."""
    depth = max(log10(share), _FLOOR + 0.1) if share else _FLOOR
    return round(_HEIGHT * depth / _FLOOR, 1)


def _labels(points: Sequence[CurvePoint]) -> Html:
    labels = [tag("span", power(point.log2_scale)) for point in points[::_LABEL_STEP]]
    return tag("div", labels, class_="x", aria_hidden="true")


def _table(points: Sequence[CurvePoint], used: int) -> Html:
    rows = []
    for point in points:
        cells = []
        for bounds in point.zones.values():
            cells.append(tag("td", _share(bounds, point.nonzero) if bounds.low else NONE))
            cells.append(tag("td", span(bounds) if bounds.high else NONE))
        mark = tag("span", " used", class_="muted") if point.log2_scale == used else None
        rows.append(tag("tr", tag("th", power(point.log2_scale), mark, scope="row"), cells))
    zones = [f"{ZONES[zone][0]}{what}" for zone in points[0].zones for what in ("", ", elements")]
    heads = [tag("th", title, scope="col") for title in ("Loss scale", *zones)]
    head, body = tag("thead", tag("tr", heads)), tag("tbody", rows)
    table = tag("table", head, body, class_="figures", id="curve-table")
    return tag("details", tag("summary", "Every loss scale as a table"), wide(table, "Every loss scale"))
