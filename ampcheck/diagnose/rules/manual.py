"""The manual of the rules, read from their docstrings."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

from ampcheck.diagnose.rules import RULES

#: The paragraphs of a rule's docstring after its summary, in this order.
SECTIONS = ("What it finds", "Why it matters", "What to do", "Example", "When to ignore it")


@dataclass(frozen=True, slots=True)
class Page:
    """What the manual says of one rule."""

    code: str
    name: str  #: as its findings are called
    summary: str  #: one sentence
    sections: Mapping[str, str]  #: by heading; a paragraph without one stands under ''

    @property
    def text(self) -> str:
        """Return the page as it is printed."""
        shown = [f"{heading}: {text}" for heading, text in self.sections.items()]
        return "\n\n".join([f"{self.code} {self.name}", self.summary, *shown])


def page(code: str) -> Page:
    """Return the page of a rule.

    >>> page("AMP101").name
    'forward-overflow'
    """
    rule = RULES[code]
    summary, *paragraphs = (inspect.getdoc(rule) or "").split("\n\n")
    sections = {}
    for paragraph in paragraphs:
        heading = next((name for name in SECTIONS if paragraph.startswith(f"{name}: ")), "")
        sections[heading] = paragraph.removeprefix(f"{heading}: ") if heading else paragraph
    return Page(code, rule.__name__.replace("_", "-"), summary.rstrip(), sections)


def table() -> str:
    """Return all rules by code as a Markdown table."""
    pages = [page(code) for code in sorted(RULES)]
    rows = [f"| `{shown.code}` | {shown.name} | {' '.join(shown.summary.split())} |" for shown in pages]
    return "\n".join(["| code | name | finds |", "|---|---|---|", *rows])
