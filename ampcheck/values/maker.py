"""Which line of a script makes what it holds in half precision, or keeps its own loss scale."""

from dataclasses import dataclass

from ampcheck.values.codec import Shape
from ampcheck.values.wording import location

#: Names of the lines that make a loss scale the script keeps itself, and that lower it.
BEGINS_SCALE, LOWERS_SCALE = "the loss scale begins", "the loss scale falls"
#: Name of the line that makes it a tensor, which may be in a class.
MAKES_SCALE = "the loss scale is made"
#: Name of the line that casts a module to half precision.
CASTS_MODULE = "a module is cast"


@dataclass(frozen=True, slots=True)
class Maker:
    """The one line that makes a buffer, an attribute or a variable of some name in half precision, or a scale."""

    JSON = Shape(optional=("cast",))

    name: str
    file: str
    line: int
    changed: tuple[str, ...] = ()  #: the lines that write into it in place
    cast: tuple[str, ...] = ()  #: the lines that cast it to half precision again

    @property
    def location(self) -> str:
        """Return the line."""
        return location(self.file, self.line)
