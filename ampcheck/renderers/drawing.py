"""Small drawings made of characters: bars, axes, shortened names."""

import textwrap
from collections.abc import Sequence

from ampcheck.diagnose.landscape import Zone
from ampcheck.values.wording import ELLIPSIS, ROOT, clean

BLOCKS = "▁▂▃▄▅▆▇█"
#: Something is there, but less than a ten-thousandth of the whole.
TRACE = "·"
_TRACE_SHARE = 1e-4
#: Stands for an exact zero in tables, so that the eye finds what is not zero.
NONE = "–"
TIMES = "×"
#: What stands above a zone of a picture, the longest that fits; the first is its name everywhere else.
ZONES = {
    Zone.UNDERFLOWED: ("underflow", "under"),
    Zone.SUBNORMAL: ("subnormal", "subn."),
    Zone.NORMAL: ("full precision", "normal", "full"),
    Zone.OVERFLOW: ("overflow", "over", "inf"),
}


def zone_name(words: Sequence[str], room: float) -> str:
    """Return the longest of a zone's names that takes up no more characters; '' where none fits."""
    return next((name for name in words if len(name) <= room), "")


def bars(counts: Sequence[float], whole: float) -> str:
    """Return a block for each count, the largest one full; what is not zero is never blank.

    >>> bars([0, 1, 50_000, 100_000, 1], 150_002)
    ' ·▄█·'
    """
    return "".join(bar(count, max(counts), whole) for count in counts)


def bar(count: float, peak: float, whole: float) -> str:
    """Return the block for one count beside a peak."""
    if not count:
        return " "
    if count < whole * _TRACE_SHARE:
        return TRACE
    return BLOCKS[max(0, min(7, round(8 * count / peak) - 1))]


def cells(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    from rich.cells import cell_len

    return cell_len(text)


def fitted(text: str, width: int) -> str:
    """Return a text cut in the middle to a number of terminal columns: the end tells more than the start.

    >>> fitted("a_rather_long_name", 10)
    'a_r…g_name'
    """
    if cells(text) <= width:
        return text
    if width < 1:
        return ""
    head, tail = (width - 1) // 3, width - 1 - (width - 1) // 3
    return _taken(text, head) + ELLIPSIS + _taken(text[::-1], tail)[::-1]


def with_room(line: str, width: int) -> list[str]:
    """Return a line of code with its comment on lines of its own above it, where both have no room side by side.

    >>> with_room("    x = y  # of z", 12)
    ['    # of z', '    x = y']
    """
    code, mark, comment = line.partition("# ")
    if cells(line) <= width or not mark:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    room = max(20, width - len(indent) - 2)
    above = [f"{indent}# {part}" for part in textwrap.wrap(comment, room, break_long_words=False)]
    return [*above, code.rstrip()] if code.strip() else above


def _taken(text: str, width: int) -> str:
    """Return the longest beginning that fits."""
    end = min(len(text), width)
    while end > 0 and cells(text[:end]) > width:
        end -= 1
    return text[:end]


def module_name(path: str, width: int) -> str:
    """Return a module path in at most so many columns: the root, then as many of its last names as fit.

    >>> module_name("model.encoder.layers.11.self_attn.out_proj", 30)
    'model…11.self_attn.out_proj'
    """
    text = clean(path) or ROOT
    if cells(text) <= width:
        return text
    names = text.split(".")
    for start in range(2, len(names)):
        shorter = f"{names[0]}{ELLIPSIS}{'.'.join(names[start:])}"
        if cells(shorter) <= width:
            return shorter
    return fitted(f"{ELLIPSIS}{names[-1]}" if len(names) > 1 else text, width)


def ticks(positions: Sequence[tuple[int, str]], width: int) -> str:
    """Return labels that start at their positions on one line; one that would touch another is left out.

    >>> ticks([(0, "2^-8"), (3, "2^-4"), (7, "2^0")], 12)
    '2^-8   2^0'
    """
    line = ""
    for position, label in positions:
        free = not line or position > len(line)
        if free and position + len(label) <= width:
            line = line.ljust(position) + label
    return line
