"""Markdown put together safely: text from strangers stays text, in prose, in code and in tables."""

import re
from collections.abc import Iterable, Sequence

from ampcheck.values.wording import clean, escaped

#: What could begin something in the middle of a line: emphasis, code, links, tags, entities, tables, formulas;
#: and what GitHub makes a link of, or tells a person that it was named: none of these is meant here.
_SPECIAL = re.compile(
    r"[\\`*\[\]<>|~$&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|[@#](?=\w)|:(?=//)|(?<=www)(?=\.)", re.IGNORECASE
)
#: What could begin a block at the start of a line.
_OPENING = re.compile(r"^(?:[#+=-]|\d{1,9}(?=[.)]))")
#: Shown as nothing; it keeps two characters from meaning something together.
_APART = "&#8203;"


def inline(text: str) -> str:
    r"""Return a text as Markdown that shows it as it is, inside of a line.

    >>> inline("*a* <b> a_b _c_ | @me")
    '\\*a\\* \\<b\\> a_b \\_c\\_ &#124; @&#8203;me'
    """
    return _SPECIAL.sub(_escaped, clean(text))


def prose(text: str) -> str:
    """Return a text as Markdown that shows it as it is, at the start of a line or of an item.

    >>> prose("1. # no list")
    '1&#8203;. # no list'
    """
    return _OPENING.sub(_opened, inline(text))


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    if char in ("@", "#", ":", ""):
        return char + _APART
    return {"&": "&amp;", "|": "&#124;"}.get(char, f"\\{char}")


def _opened(found: re.Match[str]) -> str:
    return found[0] + _APART if found[0].isdigit() else f"\\{found[0]}"


def code(text: str) -> str:
    """Return a name as code; one that would break out of it, or out of a table, as text.

    >>> code("layers.0"), code("a|b")
    ('`layers.0`', 'a&#124;b')
    """
    shown = clean(text)
    return inline(shown) if not shown or re.search(r"[`|\\]", shown) else f"`{shown}`"


def fence(text: str, language: str = "text") -> str:
    """Return lines as a block of code that nothing in them can end, and in which nothing hides."""
    text = escaped(text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    mark = "`" * max(3, longest + 1)
    return f"{mark}{language}\n{text}\n{mark}"


def folded(summary: str, body: str) -> str:
    """Return a part that is opened by a click."""
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown already; a title that ends with ">" has its column at the right."""
    from tabulate import tabulate

    sides = ["right" if title.endswith(">") else "left" for title in titles]
    heads = [title.removesuffix(">").strip() for title in titles]
    drawn: str = tabulate(list(rows), heads, tablefmt="pipe", colalign=sides, disable_numparse=True)
    return drawn


def bullets(lines: Iterable[str]) -> str:
    """Return a list."""
    return "\n".join(f"- {line}" for line in lines)
