"""What SVG pictures are drawn with: marks that have a class for their colour, and the drawing around them."""

from collections.abc import Iterable

from ampcheck.renderers.page.elements import Html, tag


def rect(x: float, y: float, width: float, height: float, style: str, tip: str = "") -> Html:
    """Return a rectangle."""
    inside = tag("title", tip) if tip else None
    return tag("rect", inside, **_rounded(x=x, y=y, width=width, height=height), class_=style)


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> Html:
    """Return a straight line."""
    return tag("line", **_rounded(x1=x1, y1=y1, x2=x2, y2=y2), class_=style)


def path(places: Iterable[tuple[float, float]], style: str, end: str = "") -> Html:
    """Return straight lines from place to place."""
    return tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places) + end, class_=style)


def text(x: float, y: float, words: str, anchor: str | None = None, style: str | None = None) -> Html:
    """Return words."""
    return tag("text", words, **_rounded(x=x, y=y), text_anchor=anchor, class_=style)


def drawing(about: str, width: int, height: float, style: str, parts: Iterable[Html]) -> str:
    """Return a picture as a file of its own."""
    drawn = tag(
        "svg",
        tag("style", Html(style)),
        parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height:.0f}",
        width=width,
        height=f"{height:.0f}",
        role="img",
        aria_label=about,
    )
    return f"{drawn}\n"


def _rounded(**places: float) -> dict[str, str]:
    return {name: f"{round(at, 1):g}" for name, at in places.items()}
