"""A report as data: sections of tables, lists, facts, code and pictures. Renderers lay them out and add no words."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, TypeVar

from ampcheck.values.findings import Finding
from ampcheck.values.verdict import Health
from ampcheck.values.wording import ELLIPSIS, count, plural

Row = TypeVar("Row")


class Kind(StrEnum):
    """What a cell or a value is, whatever its words are."""

    TEXT = "text"
    NUMBER = "number"
    CODE = "code"
    MODULE = "module"


class Tone(StrEnum):
    """What a line means for its reader."""

    PLAIN = "plain"
    GOOD = "good"
    UNSURE = "unsure"
    BAD = "bad"


def tone_of(health: Health) -> Tone:
    """Return what a verdict means for its reader: what is neither safe nor unsafe leaves something open."""
    return {Health.SAFE: Tone.GOOD, Health.UNSAFE: Tone.BAD}.get(health, Tone.UNSURE)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str  #: of two parts, where a narrow table writes it on two lines
    kind: Kind = Kind.TEXT
    spare: int = 0  #: the higher, the sooner a narrow screen leaves it out; 0: never
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts as they came, '' for nothing; renderers escape them."""

    noun: str  #: what a row is
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    troubled: int | None = None  #: so many of the first rows are with trouble

    def filled(self) -> "Table":
        """Return the table without the columns that say nothing in any row."""
        used = [at for at in range(len(self.columns)) if any(row[at] for row in self.rows)]
        rows = [[row[at] for at in used] for row in self.rows]
        return Table(self.noun, [self.columns[at] for at in used], rows, self.troubled)

    def cut(self, limit: int | None) -> "tuple[Table, str]":
        """Return the table with at most so many rows, and the words for those left out."""
        shown, rest = cut(self.rows, limit, self.noun)
        if rest and self.troubled is not None:
            left = max(0, self.troubled - len(shown))
            rest += f", {count(left)} of them with trouble" if left else ", without trouble"
        return Table(self.noun, self.columns, shown, self.troubled), rest


@dataclass(frozen=True, slots=True)
class Item:
    """A line of a list."""

    words: str
    lead: str = ""  #: stands before the words and apart from them
    tone: Tone = Tone.PLAIN
    below: str = ""  #: stands below the words


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: Sequence[Item]


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and what belongs to it."""

    label: str
    values: Sequence[str]
    kind: Kind = Kind.TEXT


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with what belongs to each."""

    facts: Sequence[Fact]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of code or of a diff."""

    text: str

    @property
    def diff(self) -> bool:
        """Tell whether this is a diff, and not lines to paste."""
        return self.text.startswith("---")

    @property
    def title(self) -> str:
        """Return what the lines are for."""
        return "The change to your code" if self.diff else "Lines to paste"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture by name, which every renderer draws in its own way."""

    name: str
    about: str
    folded: bool = False  #: waits behind a line to open where there is such a thing


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings, the most important first."""

    findings: Sequence[Finding]


Block: TypeAlias = str | Table | Items | Facts | Code | Picture | Findings


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report under its title."""

    key: str
    title: str
    about: str = ""
    blocks: Sequence[Block] = ()


def cut(rows: Sequence[Row], limit: int | None, noun: str) -> tuple[Sequence[Row], str]:
    """Return at most so many rows, and the words for those left out, '' where there are none.

    >>> cut("abc", 1, "layer"), cut("abc", None, "layer")
    (('a', '… and 2 more layers'), ('abc', ''))
    """
    shown = rows[:limit]
    left = len(rows) - len(shown)
    return shown, f"{ELLIPSIS} and {plural(left, f'more {noun}')}" if left else ""
