"""The loss curves of reports/recipes.md as a picture, drawn from the table there.

python tests/studies/recipe_curves.py    writes reports/recipes.svg
"""

from math import log10
from pathlib import Path

REPORTS = Path(__file__).parents[2] / "reports"
_WIDE, _HIGH, _GAP, _HEAD, _FOOT, _LEFT = 250, 150, 30, 58, 26, 46
_COLUMNS = 3
_COLORS = ("#888888", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#d62728")

Curves = dict[str, list[float]]


def read(text: str) -> tuple[list[int], dict[str, Curves]]:
    """Return the steps, and by training the losses of each recipe, from the table of a report."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.split("## Loss curves")[1].splitlines()
    ]
    rows = [cells for cells in lines if len(cells) > 2 and not cells[0].startswith("---")]
    steps = [int(name.removeprefix("step ")) for name in rows[0][2:]]
    found: dict[str, Curves] = {}
    for name, recipe, *losses in rows[1:]:
        if name:
            found[name] = {}
        found[next(reversed(found))][recipe] = [float(loss) for loss in losses]
    return steps, found


def picture(steps: list[int], trainings: dict[str, Curves]) -> str:
    """Return a panel for each training, its losses on a logarithmic axis."""
    rows = -(-len(trainings) // _COLUMNS)
    width = _LEFT + _COLUMNS * (_WIDE + _GAP + _LEFT)
    height = _HEAD + rows * (_HIGH + _GAP + _FOOT)
    recipes = list(next(iter(trainings.values())))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="11" fill="#777">'
    ]
    for at, recipe in enumerate(recipes):
        x = _LEFT + at * 150
        parts.append(
            f'<path d="M{x} 14h22" stroke="{_COLORS[at]}" stroke-width="2"/><text x="{x + 28}" y="18">{recipe}</text>'
        )
    for at, (name, curves) in enumerate(trainings.items()):
        left = _LEFT + at % _COLUMNS * (_WIDE + _GAP + _LEFT)
        top = _HEAD + at // _COLUMNS * (_HIGH + _GAP + _FOOT)
        parts += _panel(name, steps, curves, (left, top))
    return "".join([*parts, "</svg>\n"])


def _panel(name: str, steps: list[int], curves: Curves, corner: tuple[int, int]) -> list[str]:
    left, top = corner
    every = [loss for curve in curves.values() for loss in curve]
    low, high = log10(min(every)), log10(max(every))

    def place(step: int, loss: float) -> str:
        x = left + _WIDE * step / steps[-1]
        return f"{x:.1f} {top + _HIGH * (high - log10(loss)) / (high - low or 1):.1f}"

    parts = [
        f'<text x="{left}" y="{top - 8}" font-weight="bold">{name}</text>',
        f'<path d="M{left} {top}v{_HIGH}h{_WIDE}" fill="none" stroke="#bbb"/>',
        f'<text x="{left - 4}" y="{top + 8}" text-anchor="end">{10**high:.3g}</text>',
        f'<text x="{left - 4}" y="{top + _HIGH}" text-anchor="end">{10**low:.2g}</text>',
        f'<text x="{left + _WIDE}" y="{top + _HIGH + 14}" text-anchor="end">step {steps[-1]}</text>',
    ]
    for color, curve in zip(_COLORS, curves.values(), strict=True):
        way = "L".join(place(step, loss) for step, loss in zip(steps, curve, strict=True))
        parts.append(f'<path d="M{way}" fill="none" stroke="{color}" stroke-width="1.5"/>')
    return parts


def draw(report: Path = REPORTS / "recipes.md") -> None:
    """Write the picture beside a report."""
    table = report.read_text(encoding="utf-8")
    report.with_suffix(".svg").write_text(picture(*read(table)), encoding="utf-8")


if __name__ == "__main__":
    draw()
