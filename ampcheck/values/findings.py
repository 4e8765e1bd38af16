"""A finding: what is wrong, where, and the numbers that say so."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ampcheck.values.codec import Shape
from ampcheck.values.trace import Site


class Severity(StrEnum):
    """How bad a finding is: an error has been shown to do harm by a run, a warning is a risk."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """Return 0 for the worst."""
        return list(Severity).index(self)


class Location(NamedTuple):
    """A line of code."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a rule found; its message alone tells a person what happened."""

    JSON = Shape(
        optional=("ranks", "fix"),
        also={
            "module": (str | None, lambda finding: finding.origin and finding.origin.module),
            "op": (str | None, lambda finding: finding.origin and finding.origin.op),
            "dtype": (str | None, lambda finding: finding.origin and finding.origin.dtype),
            "location": (Location | None, lambda finding: finding.line_of_code),
        },
    )

    code: str
    name: str
    kind: str  #: forward-overflow, backward-overflow, grad-underflow, forward-underflow, ...
    severity: Severity
    message: str
    sites: tuple[Site, ...] = ()  #: the first is where it starts
    numbers: Mapping[str, float] = field(default_factory=dict)
    ranks: tuple[str, ...] = ()  #: of a merged report, those that have it
    follows: tuple[str, ...] = ()  #: what else was found and goes away with this one's cause
    fix: tuple[str, ...] = ()  #: the lines of code as they should be

    @property
    def origin(self) -> Site | None:
        """Return where it starts, if it has a place."""
        return self.sites[0] if self.sites else None

    @property
    def line_of_code(self) -> Location | None:
        """Return the line where it starts, if it has one."""
        return Location(self.origin.file, self.origin.line) if self.origin and self.origin.file else None


class How(StrEnum):
    """What kept a finding from counting."""

    NOT_SELECTED = "not selected"
    IGNORED = "ignored"
    MODULE = "ignored in a module"
    COMMENT = "comment"
    BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A finding that is kept but does not count, and who said so."""

    JSON = Shape(spread="finding")

    finding: Finding
    how: How
    entry: str = ""  #: the code, the glob, the file and line, or the baseline that says so
    reason: str = ""  #: as given

    @property
    def words(self) -> str:
        """Return who said so in a few words."""
        words = {
            How.NOT_SELECTED: "not selected",
            How.IGNORED: f"ignored by {self.entry}",
            How.MODULE: f"ignored in {self.entry}",
            How.COMMENT: f"comment at {self.entry}",
            How.BASELINE: "accepted in the baseline",
        }[self.how]
        return f"{words}: {self.reason}" if self.reason else words
