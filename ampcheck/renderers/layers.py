"""The terminal's layer table: as many columns as fit, the module's name before all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampcheck.diagnose.tables import LayerRow
from ampcheck.renderers.drawing import NONE, cells, fitted, module_name
from ampcheck.values.wording import ELLIPSIS, clean, exponent_range, percent, short_count

if TYPE_CHECKING:
    from rich.text import Text

_GAP = 2
#: A module's name gets at least this many columns if it needs them; others go first.
_NAME = 30
_CLASS = 16


@dataclass(frozen=True, slots=True)
class _Column:
    over: str
    title: str
    text: Callable[[LayerRow], str]
    right: bool = True
    style: str = ""
    dispensable: int = 0  #: the higher, the sooner it is dropped; 0: never


def _share(value: float) -> str:
    return percent(value) if value else NONE


def _dtypes(row: LayerRow) -> str:
    names = [clean(name) for name in row.dtypes]
    return "+".join(names) if len(names) <= 2 else f"{names[0]}+{len(names) - 1}"  # noqa: PLR2004 - two fit


_COLUMNS = (
    _Column(
        "", "class", lambda row: fitted(clean(row.kind), _CLASS), right=False, style="dim", dispensable=3
    ),
    _Column("", "dtype", _dtypes, right=False),
    _Column("activation", "2^…", lambda row: exponent_range(row.activations) or NONE, right=False),
    _Column("gradient", "2^…", lambda row: exponent_range(row.gradients) or NONE, right=False),
    _Column("underflowed", "forward", lambda row: _share(row.underflow_forward)),
    _Column("underflowed", "backward", lambda row: _share(row.underflow_backward)),
    _Column(
        "over-", "flowed", lambda row: short_count(row.overflowed) if row.overflowed else NONE, style="red"
    ),
    _Column("", "casts", lambda row: short_count(row.casts) if row.casts else NONE, dispensable=2),
    _Column("", "error", lambda row: _share(row.error), dispensable=1),
)


def layer_table(rows: Sequence[LayerRow], width: int) -> list["Text"]:
    """Return two lines of titles and a line for each row, none longer than a width."""
    from rich.text import Text

    drawn = {column: _drawn(column, rows) for column in _COLUMNS}
    names, columns = _chosen(rows, drawn, width)
    lines = [Text() for _ in range(len(rows) + 2)]
    labels = ["", "module", *(module_name(row.module, names) for row in rows)]
    for line, label in zip(lines, labels, strict=True):
        line.append(label + " " * (names - cells(label)))
    for column in columns:
        for index, (line, text) in enumerate(zip(lines, drawn[column], strict=True)):
            line.append(" " * _GAP)
            line.append(text, "dim" if index < 2 or text.strip() == NONE else column.style)  # noqa: PLR2004
    for line in lines[:2]:
        line.stylize("dim")
    return lines


def layer_cells(rows: Sequence[LayerRow]) -> tuple[list[str], list[list[str]]]:
    """Return the titles, those of figures marked with ">", and the texts of all columns that say something."""
    columns = [column for column in _COLUMNS if any(column.text(row) != NONE for row in rows)]
    titles = [f"{column.over} {column.title}".replace("- ", "").strip() for column in columns]
    marked = [title + ">" * column.right for title, column in zip(titles, columns, strict=True)]
    return marked, [[column.text(row) for column in columns] for row in rows]


def _drawn(column: _Column, rows: Sequence[LayerRow]) -> list[str]:
    """Return a column from its titles down, every text as wide as the widest."""
    texts = [column.text(row) for row in rows]
    if not column.right:
        texts = _at_ellipsis(texts)
    texts = [column.over, column.title, *texts]
    width = max(cells(text) for text in texts)
    pads = [" " * (width - cells(text)) for text in texts]
    return [pad + text if column.right else text + pad for text, pad in zip(texts, pads, strict=True)]


def _at_ellipsis(texts: list[str]) -> list[str]:
    """Return ranges of numbers with their ellipses under each other; other texts as they are."""
    left = max((text.find(ELLIPSIS) for text in texts if _is_range(text)), default=0)
    return [" " * (left - text.find(ELLIPSIS)) + text if _is_range(text) else text for text in texts]


def _is_range(text: str) -> bool:
    return ELLIPSIS in text and text[-1].isdigit()


def _chosen(
    rows: Sequence[LayerRow], drawn: dict[_Column, list[str]], width: int
) -> tuple[int, list[_Column]]:
    """Return the width that is left for names, and the columns that fit beside them."""
    columns = [column for column in _COLUMNS if any(text.strip() != NONE for text in drawn[column][2:])]
    longest = max((cells(module_name(row.module, width)) for row in rows), default=0)
    wanted = max(len("module"), min(longest, _NAME))
    while True:
        left = width - sum(_GAP + cells(drawn[column][0]) for column in columns)
        spare = max(columns, key=lambda column: column.dispensable, default=None)
        if left >= wanted or spare is None or not spare.dispensable:
            return max(min(left, longest), len("module")), columns
        columns.remove(spare)
