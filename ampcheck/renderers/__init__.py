"""Renderers turn a report into text: one file and one function for each format."""

from collections.abc import Callable

from ampcheck.codec import to_json
from ampcheck.renderers import terminal
from ampcheck.report import Report

RENDERERS: dict[str, Callable[[Report], str]] = {
    "terminal": terminal.render,
    "json": to_json,
}


def render(report: Report, fmt: str) -> str:
    """Return the report as text in one of the formats of `RENDERERS`."""
    if fmt not in RENDERERS:
        raise ValueError(f"expected a format of {', '.join(RENDERERS)}, got {fmt!r}; pass one of these")
    return RENDERERS[fmt](report)
