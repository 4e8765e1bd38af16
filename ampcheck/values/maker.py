"""Which line of a script makes what it holds in half precision."""

from dataclasses import dataclass

from ampcheck.values.wording import location


@dataclass(frozen=True, slots=True)
class Maker:
    """The one line that makes a buffer, an attribute or a variable of some name in half precision."""

    name: str
    file: str
    line: int
    changed: tuple[str, ...] = ()  #: the lines that write into it in place

    @property
    def location(self) -> str:
        """Return the line."""
        return location(self.file, self.line)
