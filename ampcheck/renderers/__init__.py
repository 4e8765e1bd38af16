"""Renderers turn a report into text: one file and one function for each format."""

from collections.abc import Callable

from ampcheck.renderers import annotations, frames, gitlab, html, junit, markdown, sarif, summary, terminal
from ampcheck.saved.report_json import to_json
from ampcheck.values.report import Report

RENDERERS: dict[str, Callable[[Report], str]] = {
    "terminal": terminal.render,
    "json": to_json,
    "markdown": markdown.render,
    "github": annotations.render,
    "github-summary": summary.render,
    "gitlab": gitlab.render,
    "sarif": sarif.render,
    "junit": junit.render,
    "csv": frames.render,
    "html": html.render,
}
#: The format that the ending of a file's name stands for.
SUFFIXES = {
    ".txt": "terminal",
    ".json": "json",
    ".md": "markdown",
    ".sarif": "sarif",
    ".xml": "junit",
    ".csv": "csv",
    ".html": "html",
}


def render(report: Report, fmt: str) -> str:
    """Return the report as text in one of the formats of `RENDERERS`."""
    if fmt not in RENDERERS:
        raise ValueError(f"expected a format of {', '.join(RENDERERS)}, got {fmt!r}; pass one of these")
    return RENDERERS[fmt](report)
