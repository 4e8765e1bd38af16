"""A table on a terminal: as many columns as fit, names shortened before figures are left out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ampcheck.renderers.drawing import NONE, cells, fitted, module_name
from ampcheck.renderers.view import Column, Kind, Table, Tone
from ampcheck.values.wording import ELLIPSIS, clean

if TYPE_CHECKING:
    from rich.text import Text

_GAP = 2
#: Texts keep this many columns, and a module's name as many more, before other columns are left out.
_TEXT, _NAME = 16, 30
#: Colours by what a thing means.
STYLES = {Tone.PLAIN: "", Tone.GOOD: "green", Tone.UNSURE: "yellow", Tone.BAD: "red"}


def lines_of(table: Table, width: int) -> list["Text"]:
    """Return one or two lines of titles and a line for each row, none longer than a width."""
    from rich.text import Text

    table = table.filled()
    columns = list(zip(table.columns, zip(*table.rows, strict=True), strict=True))
    drawn = [(column, _texts(column, texts)) for column, texts in columns]
    drawn, widths = _fitting(drawn, width)
    heads = [column.title.split(" ", 1) for column, _ in drawn]
    titles = [[*[""] * (2 - len(head)), *head] for head in heads]
    lines = [Text() for _ in range(2 + len(table.rows))]
    for (column, texts), head, wide in zip(drawn, titles, widths, strict=True):
        for at, (line, words) in enumerate(zip(lines, [*head, *texts], strict=True)):
            shown = _shortened(column, words, wide)
            pad = " " * (wide - cells(shown))
            gap = " " * _GAP * bool(line.plain or column is not drawn[0][0])
            line.append(gap)
            style = "dim" if at < len(head) or shown.strip() == NONE else STYLES[column.tone]
            line.append(pad + shown if column.kind is Kind.NUMBER else shown + pad, style)
    for line in lines:
        line.rstrip()
    return lines if lines[0].plain.strip() else lines[1:]


def _texts(column: Column, texts: Sequence[str]) -> list[str]:
    shown = [clean(text) or NONE for text in texts]
    return shown if column.kind is Kind.NUMBER else _at_ellipsis(shown)


def _at_ellipsis(texts: list[str]) -> list[str]:
    """Return ranges of numbers with their ellipses under each other; other texts as they are."""
    left = max((text.find(ELLIPSIS) for text in texts if _is_range(text)), default=0)
    return [" " * (left - text.find(ELLIPSIS)) + text if _is_range(text) else text for text in texts]


def _is_range(text: str) -> bool:
    head, _, tail = text.partition(ELLIPSIS)
    return all(part.removeprefix("-").isdigit() for part in (head, tail))


def _fitting(
    columns: list[tuple[Column, list[str]]], width: int
) -> tuple[list[tuple[Column, list[str]]], list[int]]:
    """Return the columns that fit, and how wide each is."""
    while True:
        wanted = [_wanted(column, texts) for column, texts in columns]
        least = [min(wide, _least(column, wide)) for (column, _), wide in zip(columns, wanted, strict=True)]
        spare = max(columns, key=lambda one: one[0].spare, default=None)
        room = width - _GAP * (len(columns) - 1)
        if sum(least) <= room or spare is None or not spare[0].spare:
            break
        columns = [one for one in columns if one is not spare]
    while sum(wanted) > room:
        at = max(range(len(wanted)), key=lambda i: (wanted[i] > least[i], wanted[i]))
        wanted[at] -= 1
    return columns, wanted


def _wanted(column: Column, texts: Sequence[str]) -> int:
    return max(cells(text) for text in [*column.title.split(" ", 1), *texts])


def _least(column: Column, wanted: int) -> int:
    if column.kind is Kind.NUMBER:
        return wanted
    return _NAME if column.kind is Kind.MODULE else _TEXT


def _shortened(column: Column, words: str, width: int) -> str:
    return module_name(words, width) if column.kind is Kind.MODULE and words else fitted(words, width)
