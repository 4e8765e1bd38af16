"""What the FP32 reference takes from a script, and what its own numbers there would do to the step."""

from dataclasses import dataclass
from enum import StrEnum

from ampcheck.values.codec import Shape
from ampcheck.values.wording import location


class DoubtKind(StrEnum):
    """What is taken."""

    GIVEN = "given"  #: numbers that were rounded to half precision before the step
    PICKED = "picked"  #: elements that the step picks, by numbers in half precision
    #: what decides in an evaluation, by numbers that are nothing like FP32's, or overflows there
    EVALUATED = "evaluated"
    CHANGED = "changed"  #: what is done to gradients between the backward and the optimizer
    HIDDEN = "hidden"  #: an overflow of gradients that the script replaces by finite numbers
    ADDED = "added"  #: what is added to gradients that hold the loss scale, and does not hold it


@dataclass(frozen=True, slots=True)
class Doubt:
    """What was taken in one step, and by how much the gradients of another FP32 run differ."""

    JSON = Shape(optional=("overflows", "by_zero", "times"))

    kind: DoubtKind
    names: tuple[str, ...]  #: what the script calls the numbers, or the operations that pick
    file: str  #: of the first place that takes them
    line: int
    error: float  #: of the gradients, or of the part that is furthest off
    part: str = ""  #: the module of that part, "" where it is all of them
    harms: bool = False  #: it is more than rounding the weights explains
    #: picks after an overflow, which are worse by the error: FP32's were not tried; gradients that become zero by one;
    #: a metric that is infinite
    overflows: bool = False
    by_zero: bool = False  #: comparisons of a number that is zero in float16, and is not in FP32
    times: int = 0  #: evaluations in which a score stands still and FP32's shows a better model, or is off by the error

    @property
    def location(self) -> str:
        """Return the place that takes them."""
        return location(self.file, self.line)
