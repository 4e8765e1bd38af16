"""How the terminal's lines are put together: styled text, indents, marks with text beside them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

Parts: TypeAlias = Iterable["RenderableType"]


def title(name: str, about: str = "") -> Parts:
    """Yield the heading of a section, a blank line before it."""
    yield ""
    yield text((name, "bold"), "  ", (about, "dim"))


def bullet(mark: str, words: str, style: str = "") -> "RenderableType":
    """Return a text beside its mark."""
    return hanging(text((mark, style)), text(words), 2)


def text(*parts: str | tuple[str, str]) -> "Text":
    """Return a text made of parts, each plain or with a style."""
    from rich.text import Text

    return Text.assemble(*parts)


def indented(words: "Text", indent: int) -> "RenderableType":
    """Return a text whose lines, also those it is wrapped into, are indented."""
    from rich.padding import Padding

    return Padding(words, (0, 0, 0, indent), expand=False)


def hanging(mark: "Text", words: "Text", indent: int = 0) -> "RenderableType":
    """Return a text that is wrapped beside its mark."""
    from rich.padding import Padding
    from rich.table import Table

    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(mark, words)
    return Padding(grid, (0, 0, 0, indent), expand=False)


def fixed(lines: Iterable["Text"]) -> Parts:
    """Yield lines that were made to measure, so that nothing wraps them."""
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
        yield indented(line, 2)
