"""How numbers and names are written for people: one way, in every message and renderer."""

import math
import re
import unicodedata
from collections.abc import Sequence

from ampcheck.values.stats import HUGE_EXPONENT, TINY_EXPONENT, TensorStats
from ampcheck.values.trace import Site

#: What a module without a name is called: the model itself, or code outside of it such as the loss.
ROOT = "(root)"
ELLIPSIS = "…"

#: A terminal's escape sequences: what follows the escape character would stay behind as litter.
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?", re.DOTALL)


def clean(text: str) -> str:
    r"""Return a name or message from someone else's program with nothing in it but visible characters.

    >>> clean("conv\x1b[31m1\n\u202eleft")
    'conv1 left'
    """
    return " ".join(_visible(text).split())


def _visible(text: str) -> str:
    spaced = (" " if char.isspace() else char for char in _ESCAPES.sub("", text))
    return "".join(char for char in spaced if unicodedata.category(char)[0] != "C")


def clean_line(text: str) -> str:
    r"""Return a line of code with its own spaces, and nothing else in it but visible characters.

    >>> clean_line("    if a:  # why\x1b[31m\n")
    '    if a:  # why'
    """
    return _visible(text).rstrip()


def indented_line(text: str) -> str:
    r"""Return a line of a diff or of code with its indent, and `clean` behind that.

    >>> indented_line("+    a  =\x1b[31m 1")
    '+    a = 1'
    """
    inner = text[1:].lstrip()
    return text[: len(text) - len(inner)] + clean(inner)


def escaped(text: str) -> str:
    r"""Return lines of text in which what cannot be seen, or turns what follows around, is written out.

    >>> escaped("a\u202eb\x1b[1m\n\tc")
    'a\\u202eb\\x1b[1m\n\tc'
    """
    return "".join(
        char
        if char in "\n\t" or unicodedata.category(char) not in _HIDDEN
        else char.encode("unicode_escape").decode()
        for char in text
    )


#: Categories of characters without a shape of their own: controls, marks of direction, separators of lines.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def no_commands(text: str) -> str:
    r"""Return lines none of which a CI service takes for a command to itself, as GitHub does with `::error`.

    >>> no_commands("one\n  ::error::two")
    'one\n  \\::error::two'
    """
    return _COMMAND.sub(r"\1\\\2", text)


_COMMAND = re.compile(r"^(\s*)(::|##(?=\[))", re.MULTILINE)


def percent(share: float) -> str:
    """Return a share as percent; what is not zero never looks like zero, what is not all never like all.

    >>> [percent(share) for share in (0, 1e-9, 0.0002, 0.034, 0.31, 0.9999, 1)]
    ['0 %', '<0.01 %', '0.02 %', '3.4 %', '31 %', '>99.9 %', '100 %']
    """
    value = 100 * share
    if not math.isfinite(value):
        return str(value)
    if 0 < value < 0.01:  # noqa: PLR2004 - the smallest number with two decimals
        return "<0.01 %"
    if 99.9 < value < 100:  # noqa: PLR2004 - the largest number with one decimal
        return ">99.9 %"
    decimals = 0 if value in (0, 100) or 10 <= value < 99 or value > 100 else 1 if value >= 1 else 2  # noqa: PLR2004
    return f"{value:,.{decimals}f} %"


def count(number: int) -> str:
    """Return a count with thousands kept apart."""
    return f"{number:,}"


def short_count(number: int) -> str:
    """Return a count in at most five characters.

    >>> [short_count(number) for number in (0, 999, 9999, 12_345, 999_999, 7_250_000)]
    ['0', '999', '9,999', '12k', '1.0M', '7.2M']
    """
    if number < 10_000:  # noqa: PLR2004 - what five characters hold
        return f"{number:,}"
    return _with_unit(number, ("k", "M", "G", "T", "P", "E"), "")


def size(number: int) -> str:
    """Return a number of bytes.

    >>> [size(number) for number in (0, 999, 1500, 12_300_000)]
    ['0 B', '999 B', '1.5 kB', '12 MB']
    """
    return f"{number} B" if number < 1000 else _with_unit(number, ("kB", "MB", "GB", "TB", "PB", "EB"), " ")  # noqa: PLR2004


def _with_unit(number: float, units: tuple[str, ...], gap: str) -> str:
    for unit in units:
        number /= 1000
        if number < 999.5 or unit == units[-1]:  # noqa: PLR2004 - 999.5 would be written as 1000
            break
    return f"{number:.{1 if number < 9.95 else 0}f}{gap}{unit}"  # noqa: PLR2004 - two digits


def power(exponent: int) -> str:
    """Return a power of two."""
    return f"2^{exponent}"


def scale_words(value: float) -> str:
    """Return a loss scale as a power of two where it is one.

    >>> scale_words(65536.0), scale_words(1000.0)
    ('2^16', '1000')
    """
    whole = value > 0 and math.log2(value).is_integer()
    return power(int(math.log2(value))) if whole else f"{value:g}"


def plural(number: int, noun: str) -> str:
    """Return "1 warning", "2 warnings"."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first of some names, and how many more there are; a model's own name is "".

    >>> some(["a", "", "c", "d"], 2), some(["a", "b"], 2)
    ('a, the root and 2 more', 'a, b')
    """
    shown = ", ".join(clean(name) or "the root" for name in names[:most])
    return f"{shown} and {count(len(names) - most)} more" if len(names) > most else shown


def exponent_range(stats: TensorStats) -> str:
    """Return from which to which power of two the magnitudes reach: exponents alone, floor(log2).

    >>> exponent_range(TensorStats(-14, (1, 0, 7)))
    '-14…-12'
    """
    if not stats.counts:
        return ""
    low = "<-126" if stats.lowest == TINY_EXPONENT else str(stats.lowest)
    high = ">127" if stats.highest == HUGE_EXPONENT else str(stats.highest)
    return low if stats.lowest == stats.highest else f"{low}{ELLIPSIS}{high}"


def place(site: Site) -> str:
    """Return an operation and its module as part of a sentence."""
    module = clean(site.module) or ROOT
    return f"{clean(site.op)} in {module}" if site.op else f"{clean(site.slot)} of {module}"


def location(file: str, line: int) -> str:
    """Return "file:line" without anything that is not visible; '' where there is no file."""
    return f"{clean(file)}:{line}" if file else ""


def measure(name: str, value: float) -> str:
    """Return one of a finding's numbers with its name, in the unit that the name ends with.

    >>> measure("underflowed_fraction", 0.31), measure("amax", 131008.0), measure("cast_bytes", 2e6)
    ('underflowed 31 %', 'amax 131,008', 'cast 2.0 MB')
    """
    words = clean(name)
    if words == "spreads_to":
        return f"spreads to {plural(int(value), 'more operation')}"
    if words.endswith(("_fraction", "_share")):
        return f"{_spaced(words.rsplit('_', 1)[0])} {percent(value)}"
    if words.endswith("_bytes") and math.isfinite(value):
        return f"{_spaced(words.removesuffix('_bytes'))} {size(int(value))}"
    if "log2_" in words and float(value).is_integer():
        return f"{_spaced(words.replace('log2_', ''))} {power(int(value))}"
    whole = float(value).is_integer() and abs(value) < 1e9  # noqa: PLR2004 - larger ones are magnitudes
    return f"{_spaced(words)} {int(value):,}" if whole else f"{_spaced(words)} {value:.3g}"


def _spaced(name: str) -> str:
    return name.replace("_", " ").replace("fp32", "FP32").strip()
