"""How the terminal's lines are put together: styled text, indents, marks with text beside them."""

import functools
import random
from collections.abc import Callable, Iterable
from io import StringIO
from typing import TYPE_CHECKING, ParamSpec, TypeAlias

from ampcheck.values.wording import no_commands

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

Given = ParamSpec("Given")

Parts: TypeAlias = Iterable["RenderableType"]


def nothing_drawn(function: Callable[Given, str]) -> Callable[Given, str]:
    """Let a function draw no random number of the program's: rich draws one when it is imported."""

    @functools.wraps(function)
    def render(*args: Given.args, **kwargs: Given.kwargs) -> str:
        before = random.getstate()
        try:
            return function(*args, **kwargs)
        finally:
            random.setstate(before)

    return render


@nothing_drawn
def drawn(parts: Parts, width: int, *, color: bool) -> str:
    """Return parts as lines no longer than a width."""
    from rich.console import Console

    out = StringIO()
    console = Console(
        file=out,
        width=width,
        color_system="standard" if color else None,
        force_terminal=color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},  # the same report looks the same everywhere
    )
    for part in parts:
        console.print(part)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return no_commands("\n".join(lines).strip("\n") + "\n")


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
