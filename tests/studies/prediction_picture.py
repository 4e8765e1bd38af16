"""The prediction study as a picture: a panel for each model, and where a detector's gradients lie."""

import math
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

from prediction_study import ACTIVATIONS, WEIGHTS, Study

WIDTH, HEIGHT, COLUMNS = 300, 190, 3
LEFT, TOP, INNER_WIDTH, INNER_HEIGHT = 52, 34, 228, 120
#: The smallest share drawn: what is below lies on the axis.
FLOOR = -5.0
HEAD = 56
EXPONENTS = range(-52, 17)

_STYLE = """
  svg { background: #ffffff; color: #1f2328; font: 11px system-ui, sans-serif; }
  text { fill: currentColor; } .faint { fill: #656d76; } .axis { stroke: #d0d7de; fill: none; }
  .a { fill: #0969da; stroke: #0969da; } .w { fill: #bc4c00; stroke: #bc4c00; }
  .line { fill: none; stroke-width: 1.5; } .band { stroke: none; opacity: .25; } .dot, .bar { stroke: none; }
  .flush { stroke: #656d76; stroke-dasharray: 3 3; }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117; color: #e6edf3; } .faint { fill: #8d96a0; } .axis { stroke: #30363d; }
    .a { fill: #58a6ff; stroke: #58a6ff; } .w { fill: #f0883e; stroke: #f0883e; }
  }
"""


def picture(studies: Sequence[Study], detectors: Sequence[Study]) -> str:
    """Return the whole picture as SVG."""
    rows = math.ceil(len(studies) / COLUMNS)
    height = HEAD + rows * HEIGHT + len(detectors) * (HEIGHT - 20) + 10
    panels = [
        _panel(study, index % COLUMNS * WIDTH, HEAD + index // COLUMNS * HEIGHT)
        for index, study in enumerate(studies)
    ]
    bars = [
        _histogram(study, HEAD + rows * HEIGHT + index * (HEIGHT - 20))
        for index, study in enumerate(detectors)
    ]
    size = f'viewBox="0 0 {COLUMNS * WIDTH} {height}" width="{COLUMNS * WIDTH}" height="{height}"'
    body = "\n".join([_head(), *panels, *bars])
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return f"{head}\n<style>{_STYLE}</style>\n{body}\n</svg>\n"


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def _head() -> str:
    title = _text(12, 20, "Share of non-zero gradients that become zero in fp16, over the loss scale")
    key = (
        '<g class="a"><path class="line" d="M12 38h24"/><circle class="dot" cx="24" cy="38" r="3"/></g>'
        + _text(42, 42, "activation gradients")
        + '<g class="w"><path class="line" d="M172 38h24"/><circle class="dot" cx="184" cy="38" r="3"/></g>'
        + _text(202, 42, "weight gradients")
        + _text(
            312,
            42,
            "line: predicted from one FP32 pass; dot: measured in a real fp16 backward",
            kind="faint",
        )
    )
    return title + key


def _panel(study: Study, x: float, y: float) -> str:
    scales = list(study.curves[ACTIVATIONS])
    low, high = scales[0], scales[-1]

    def across(scale: float) -> float:
        return x + LEFT + (scale - low) / (high - low) * INNER_WIDTH

    def up(share: float) -> float:
        decades = max(math.log10(share), FLOOR) if share > 0 else FLOOR
        return y + TOP + decades / FLOOR * INNER_HEIGHT

    parts = [
        _text(x + LEFT, y + TOP - 10, study.name),
        *_axes(x, y, [(s, across(s)) for s in scales if s % 8 == 0]),
    ]
    for kind, name in ((ACTIVATIONS, "a"), (WEIGHTS, "w")):
        curve = study.curves[kind]
        if not any(tally.live for tally in curve.values()):
            continue
        upper = [(across(s), up(t.high / max(t.live, 1))) for s, t in curve.items()]
        lower = [(across(s), up(t.low / max(t.live, 1))) for s, t in curve.items()]
        middle = [(across(s), up(t.predicted)) for s, t in curve.items()]
        dots = [
            (across(p.log2_scale), up(p.tallies[kind].measured)) for p in study.points if not p.overflowed
        ]
        parts.append(f'<g class="{name}">')
        parts.append(f'<path class="band" d="{_path([*upper, *reversed(lower)])}Z"/>')
        parts.append(f'<path class="line" d="{_path(middle)}"/>')
        parts += [f'<circle class="dot" cx="{cx:.1f}" cy="{cy:.1f}" r="3"/>' for cx, cy in dots]
        parts.append("</g>")
    first = next((p.log2_scale for p in study.points if p.overflowed), None)
    if first is not None:
        parts.append(
            _text(across(first), y + TOP + 12, "overflow", "end" if first == high else "middle", "faint")
        )
    return "\n".join(parts)


def _axes(x: float, y: float, ticks: Iterable[tuple[int, float]]) -> list[str]:
    bottom = y + TOP + INNER_HEIGHT
    parts = [f'<path class="axis" d="M{x + LEFT} {y + TOP}V{bottom}H{x + LEFT + INNER_WIDTH}"/>']
    for share, label in ((1, "100 %"), (0.1, "10 %"), (0.01, "1 %"), (0.001, "0.1 %"), (0.0001, "0.01 %")):
        parts.append(
            _text(x + LEFT - 5, y + TOP + math.log10(share) / FLOOR * INNER_HEIGHT + 4, label, "end", "faint")
        )
    parts.append(_text(x + LEFT - 5, bottom + 4, "0", "end", "faint"))
    parts += [_text(place, bottom + 15, f"2^{scale}", "middle", "faint") for scale, place in ticks]
    return parts


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _histogram(study: Study, y: float) -> str:
    counts = dict(study.histogram.exponents())
    whole = max(study.histogram.numel, 1)
    step = (COLUMNS * WIDTH - LEFT - 20) / len(EXPONENTS)
    base, tallest = y + 130, max(counts.values(), default=1)
    zeros = study.histogram.zeros / whole
    title = (
        f"{study.name}: activation gradients of the FP32 run by magnitude ({zeros:.0%} are zero, not drawn)"
    )
    parts = [_text(LEFT, y + 14, title), '<g class="a">']
    for index, exponent in enumerate(EXPONENTS):
        height = 96 * counts.get(exponent, 0) / tallest
        if height:
            x = LEFT + index * step
            parts.append(
                f'<rect class="bar" x="{x:.1f}" y="{base - height:.1f}" '
                f'width="{step - 1:.1f}" height="{height:.1f}"/>'
            )
    parts.append("</g>")
    for exponent, label in ((-25, "zero in fp16 without a scale"), (16, "largest in fp16")):
        x = LEFT + (exponent - EXPONENTS[0]) * step
        parts.append(f'<path class="underflow" d="M{x:.1f} {y + 24}V{base}"/>')
        parts.append(_text(x - 4, y + 34, label, "end", "faint"))
    parts.append(f'<path class="axis" d="M{LEFT} {base}H{COLUMNS * WIDTH - 20}"/>')
    for index, exponent in enumerate(EXPONENTS):
        if exponent % 8 == 0:
            parts.append(_text(LEFT + (index + 0.5) * step, base + 15, f"2^{exponent}", "middle", "faint"))
    return "\n".join(parts)
