"""What running code did to its numbers: sites, their statistics, and the trace that holds them.

Roll-ups must not count a tensor twice: the output of one operation is the input of the next and often a
module's output too. Sum over `Slot` kinds that were asked for, never over all of them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, sqrt
from typing import NamedTuple, TypeVar

from ampcheck.values.codec import SPARSE, Shape
from ampcheck.values.stats import TensorStats

Key = TypeVar("Key")
Value = TypeVar("Value", "TensorStats", "CastCount", "PairError", int)

#: What is not audited where a comparison of two numbers comes out otherwise, behind it and its line.
BRANCH = "comes out otherwise than in FP32: what the script would do then was not seen"


class Phase(StrEnum):
    """Which part of a step a site belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"  #: a checkpointed forward running again inside the backward
    STATE = "state"  #: parameters and their gradients, read between the backward and the update

    #: Enum's own is a function in Python, and a site's hash contains it.
    __hash__ = str.__hash__


class Site(NamedTuple):
    """A place in a program where tensors appear: the same code gives the same site on every rank.

    A tuple: there are thousands, and each is made, hashed and compared faster so than as a dataclass.
    """

    module: str  #: qualified name; '' is the root module, or code outside of any module such as the loss
    op: str  #: aten base name; '' for a module's own inputs and outputs, parameters and their gradients
    slot: str  #: output, output[1], input[0], output.logits, param[weight], param_grad[weight]
    phase: Phase
    dtype: str  #: as executed, "float16"
    file: str = ""  #: first frame outside torch and ampcheck
    line: int = 0

    @property
    def place(self) -> "Site":
        """Return the site without its dtype: what the FP32 and the low-precision run have in common."""
        return Site(self.module, self.op, self.slot, self.phase, "", self.file, self.line)

    @property
    def scaled(self) -> bool:
        """Tell whether what is here is multiplied by the loss scale."""
        return self.phase is Phase.BACKWARD or self.slot.startswith("param_grad")

    @property
    def location(self) -> str:
        """Return "file:line", or '' where no user code is behind the site."""
        return f"{self.file}:{self.line}" if self.file else ""


#: Operations that return, behind their result, what their backward will read: means, masks, sums.
_SAVES = (
    "_batch_norm",
    "_layer_norm",
    "_group_norm",
    "_rms_norm",
    "_dropout",
    "_scaled_dot_product",
    "nll_loss",
)


def is_result(site: Site) -> bool:
    """Tell whether a site holds an operation's result, and not what it saves for its backward."""
    first = site.slot in {"output", "output[0]"} or not site.slot.startswith("output[")
    return (
        first
        or not site.op
        or site.phase is not Phase.FORWARD
        or not any(part in f"_{site.op}" for part in _SAVES)
    )


class Cast(NamedTuple):
    """A place where a tensor changes its dtype."""

    module: str
    source: str  #: dtype before
    target: str  #: dtype after
    phase: Phase
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class CastCount:
    """How often a cast ran and how much it wrote."""

    JSON = SPARSE

    calls: int = 0
    elements: int = 0
    bytes: int = 0  #: written
    round_trips: int = 0  #: calls that undo the cast their input came from

    def __add__(self, other: "CastCount") -> "CastCount":
        """Return both counts together."""
        return CastCount(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True, slots=True)
class PairError:
    """Sums over sampled elements r of the FP32 reference and x of the low-precision run; they add."""

    JSON = SPARSE

    sampled: int = 0
    live: int = 0  #: r not zero
    lost: int = 0  #: r not zero, x zero
    error_squares: float = 0.0  #: sum of (x - r)**2
    error_sum: float = 0.0  #: sum of x - r
    reference_squares: float = 0.0  #: sum of r**2
    cross: float = 0.0  #: sum of x * r
    nonfinite: int = 0  #: pairs left out of the sums because x or r is no finite number

    def __add__(self, other: "PairError") -> "PairError":
        """Return both sets of pairs together."""
        return PairError(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    @property
    def is_exact(self) -> bool:
        """Whether all of some pairs are finite and the same."""
        return self.sampled > 0 and not self.error_squares and not self.nonfinite

    @property
    def relative_rms(self) -> float:
        """Return the RMS of the error over the RMS of the reference; inf where only the reference is 0."""
        if self.error_squares == 0.0:
            return 0.0
        return sqrt(self.error_squares / self.reference_squares) if self.reference_squares else inf


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """A module that ran, in order of first execution."""

    JSON = SPARSE

    path: str
    kind: str  #: class name
    calls: int = 0
    aliases: tuple[str, ...] = ()  #: further names of the same, shared module
    parameters: int = 0  #: elements it owns itself
    dtypes: tuple[str, ...] = ()  #: of the parameters it owns itself


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One step in three numbers; a scaler's behaviour can be replayed from these."""

    loss: float  #: unscaled
    log2_scale: int
    grad_amax: float  #: largest finite magnitude in a low-precision backward tensor, scaled
    nonfinite: bool  #: a parameter gradient held an inf or NaN


#: An error begins in a result this far off, and this many times farther off than its inputs.
LEAP_ERROR, LEAP_FACTOR = 0.05, 8.0


@dataclass(frozen=True, slots=True)
class ErrorJump:
    """An operation whose result is far off although its inputs are not: where an error begins."""

    site: Site
    error_before: float  #: worst relative RMS error of its inputs
    error: float  #: of its result
    dropped: Site  #: the nearest result upstream that was held in low precision: where the bits were lost


@dataclass(frozen=True, slots=True)
class UpdateLoss:
    """A tensor after a few updates in half precision: what FP32 would have changed and it did not."""

    JSON = Shape(optional=("infinite", "stepped", "before", "underflows", "loaded", "in_fp32", "dtype"))

    name: str  #: qualified name of the parameter or buffer
    moved: int  #: elements that change in FP32
    stuck: int  #: of these, the ones that keep their value in half precision
    wrong: int = 0  #: of these, the ones that are no finite number then, or moved much further
    file: str = ""  #: of the line that writes it, where that is a line of the script
    line: int = 0
    infinite: int = 0  #: of the wrong ones, those that are no finite number
    stepped: bool = False  #: that line steps an optimizer of torch's, which writes it
    before: float = 0.0  #: how far off it was before training, as a part of FP32's numbers
    loaded: bool = False  #: load_state_dict has cast it there
    underflows: bool = False  #: what changes it is computed in float16, and is zero there
    in_fp32: bool = False  #: it is held in FP32 itself: what is added to it is not
    dtype: str = ""  #: that it is held in, where that is known


@dataclass(frozen=True, slots=True)
class Stored:
    """A parameter, buffer or input, and what casting it to half precision does to its numbers."""

    name: str  #: qualified
    elements: int
    infinite: int = 0  #: elements that become infinite
    underflowed: int = 0  #: elements that become zero
    error: float = 0.0  #: relative L2 error of the others
    amax: float = 0.0  #: largest magnitude before
    kind: str = "buffer"  #: buffer, parameter or input


@dataclass(frozen=True, slots=True, order=True)
class Constant:
    """A number from the user's code that an operation of the forward rounded to half precision."""

    JSON = Shape(spread="site")

    site: Site  #: of the operation's result
    value: float  #: as it was passed


@dataclass(frozen=True, slots=True)
class Integers:
    """Numbers that a line of code turns into integers, and how many become others than in FP32."""

    JSON = SPARSE

    file: str
    line: int
    numbers: int  #: all of them whole in FP32
    others: int


@dataclass(frozen=True, slots=True)
class Failure:
    """What the user's code raised during a step, and where."""

    JSON = SPARSE

    kind: str  #: exception class
    message: str
    module: str = ""
    op: str = ""  #: as the failing line calls it: masked_fill
    file: str = ""
    line: int = 0
    in_thread: bool = False  #: in another thread than the one that starts the step

    @property
    def location(self) -> str:
        """Return "file:line", '' where no user code was involved."""
        return f"{self.file}:{self.line}" if self.file else ""

    def site(self, dtype: str) -> Site:
        """Return the operation that raised as a site, in the dtype that it was to compute in."""
        return Site(self.module, self.op, "output", Phase.FORWARD, dtype, self.file, self.line)


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything recorded in one or more steps of one precision; traces add up over steps and ranks."""

    JSON = Shape(optional=("elements", "integers", "caught"))

    sites: Mapping[Site, TensorStats] = field(default_factory=dict)  #: in order of execution
    casts: Mapping[Cast, CastCount] = field(default_factory=dict)
    steps: tuple[StepSummary, ...] = ()
    modules: tuple[ModuleInfo, ...] = ()
    not_audited: Mapping[str, int] = field(default_factory=dict)  #: what was not seen, and how often
    operations: int = 0  #: dispatched operations, views included
    measured: int = 0  #: tensors whose elements were read
    failure: Failure | None = None  #: what ended the first step that did not go through
    constants: tuple[Constant, ...] = ()  #: each once, in order of execution
    elements: Mapping[Site, int] = field(default_factory=dict)  #: of results that had no values, in a dry run
    integers: tuple[Integers, ...] = ()  #: that are other integers than in FP32
    caught: tuple[Failure, ...] = ()  #: what the script caught, which left a module without its gradients

    def __add__(self, other: "Trace") -> "Trace":
        """Return both traces as one: key by key, the first one's order kept."""
        known = {module.path for module in self.modules}
        return Trace(
            add_maps(self.sites, other.sites),
            add_maps(self.casts, other.casts),
            self.steps + other.steps,
            self.modules + tuple(module for module in other.modules if module.path not in known),
            add_maps(self.not_audited, other.not_audited),
            self.operations + other.operations,
            self.measured + other.measured,
            self.failure or other.failure,
            tuple(dict.fromkeys(self.constants + other.constants)),
            add_maps(self.elements, other.elements),
            self.integers + other.integers,
            tuple(dict.fromkeys(self.caught + other.caught)),
        )

    def numels(self) -> dict[Site, int]:
        """Return the elements of each site, whether their values were read or not."""
        return {site: stats.numel for site, stats in self.sites.items()} | dict(self.elements)

    def precision(self, autocast: str) -> str:
        """Return what it ran in: what it asked for, even if some of it is in another: RNNs under cuDNN are fp16."""
        dtypes = {site.dtype for site in self.sites if site.op and site.phase is not Phase.STATE}
        if autocast in dtypes:
            dtypes = {autocast}
        return "fp16" if "float16" in dtypes else "bf16" if "bfloat16" in dtypes else "fp32"

    def by(self, key: Callable[[Site], Key | None]) -> dict[Key, TensorStats]:
        """Return the statistics summed by a key of the site; None leaves a site out."""
        return total((key(site), stats) for site, stats in self.sites.items())


def add_maps(first: Mapping[Key, Value], second: Mapping[Key, Value]) -> dict[Key, Value]:
    """Return the sum of two mappings, key by key."""
    merged = dict(first)
    for key, value in second.items():
        merged[key] = merged[key] + value if key in merged else value
    return merged


def total(pairs: Iterable[tuple[Key | None, Value]]) -> dict[Key, Value]:
    """Return the values summed by key; pairs whose key is None are left out."""
    sums: dict[Key, Value] = {}
    for key, value in pairs:
        if key is not None:
            sums[key] = sums[key] + value if key in sums else value
    return sums


def summed_up(trace: Trace, loss: float, log2_scale: int, low: str) -> StepSummary:
    """Return a step in a line."""
    backward = [s.amax for k, s in trace.sites.items() if k.phase is Phase.BACKWARD and k.dtype == low]
    bad = any(s.nonfinite for k, s in trace.sites.items() if k.slot.startswith("param_grad"))
    return StepSummary(loss, log2_scale, max(backward, default=0.0), bad)
