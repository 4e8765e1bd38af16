"""What a training loop did, in order: its rounds of events, the objects in them, and the loss scale over time.

A round is what happens from one update of the weights to the next: it begins with the first forward, or backward,
after an optimizer has stepped. Rounds repeat themselves, so each different one is kept once, with the order they
came in. Events say what does not change from round to round; numbers that do are kept beside them.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate

from ampcheck.values.codec import SPARSE, Shape


class Kind(StrEnum):
    """What the script's code did."""

    FORWARD = "forward"  #: an outermost module was called
    AUTOCAST = "autocast"  #: an autocast region was entered
    AUTOCAST_END = "autocast end"
    #: a forward uses the cast of a weight that has changed since; seen in recorded rounds
    STALE_CAST = "stale cast"
    SCALE = "scale"  #: scaler.scale(loss)
    BACKWARD = "backward"
    GROWN = "grown"  #: a backward has added to gradients that a scaler's step had divided by the scale
    UNSCALE = "unscale"  #: scaler.unscale_(optimizer)
    CLIP = "clip"  #: of gradients: torch.nn.utils.clip_grad_norm_ and its relatives
    #: gradients are used that a scale still multiplies, where the script has divided others; seen in recorded rounds,
    #: before the step of an optimizer, or, of no thing, before a clipping
    LEFT_SCALED = "left scaled"
    #: gradients of a scaled loss and of one that is not are stepped, all divided by the scale; seen in recorded rounds
    MIXED = "mixed"
    #: the script divides gradients by its scale that a scaled loss is added to after that; seen in recorded rounds
    DIVIDE = "divide"
    #: gradients are divided by a number, named by the loss scale and that number; seen in recorded rounds
    DIVISOR = "divisor"
    #: a scaler divides gradients for an optimizer that it has divided for another one before
    UNSCALED_AGAIN = "unscaled again"
    READ_GRAD = "read gradients"  #: the script computes with parameters' gradients; seen in recorded rounds
    #: what autograd.grad returns should move numbers and is zero for the most part; seen in recorded rounds, and named
    #: by its line
    LOST_GRAD = "lost gradients"
    RETURNED_ZEROS = "returned zeros"  #: the same, whatever it is used for
    #: what autograd.grad returns is not finite, again and again, and no step follows; named by how often,
    #: and by a number in half precision that is infinite, if there is one
    NEVER_FINITE = "never finite"
    #: half precision has made zeros or infinities of gradients that another thread computes and sends; named by which
    SENT_GRAD = "sent gradients"
    SCALER_STEP = "scaler step"
    STEP = "step"  #: optimizer.step
    UPDATE = "update"  #: scaler.update
    SCHEDULE = "schedule"  #: scheduler.step
    ZERO_GRAD = "zero_grad"
    SAVE = "save"  #: torch.save
    SAVE_SCALER = "scaler state"  #: scaler.state_dict
    SAVE_OPTIMIZER = "optimizer state"  #: optimizer.state_dict
    PEEK = "peek"  #: a private attribute of the scaler was read that it does not have


#: What is not audited where watching failed.
GAVE_IN = "everything after an internal error of ampcheck"
#: Names of what a cast has made of gradients.
MADE_INFINITE, MADE_ZERO = "infinite", "zero"
#: Name of a stale cast that is known by the region alone, which another thread is in.
ELSEWHERE = "in another thread"
#: What a weight is called, beside its shape, that a thread sends in half precision.
SENT_WEIGHT = "a weight that is sent"
#: Name of a backward whose gradients are returned: torch.autograd.grad.
RETURNED = "autograd.grad"
#: Name of a backward that starts from gradients of the script's own, not from a loss.
SEEDED = "given gradients"
#: Name of an optimizer's step on gradients that are not finite, of a loss that is scaled by hand, of a backward that
#: adds to such gradients of a skipped step, and of a schedule's step by such a number.
NOT_FINITE = "not finite"
#: Name of the same backward where such gradients were stepped, and are in the weights.
SPOILT = "weights not finite"
#: Name of a backward that adds to gradients of a loss that was multiplied by another scale.
RESCALED = "another scale"
#: Name of the same backward where both scales are scalers' own, as they are then.
TWO_SCALES = "two scales"
#: Whether what gradients are clipped to is multiplied by the loss scale: it is, and perhaps it is.
IN_SCALE, PERHAPS = "in scale", "perhaps"
#: End of the name of a region of autocast that keeps no casts of weights.
UNCACHED = ":uncached"
#: Name of an update that received the scale: nothing needs to have been checked before it.
GIVEN = "a scale of its own"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing the script's code did; the same line in the same circumstances gives the same event."""

    JSON = SPARSE

    kind: Kind
    thing: str = ""  #: label of the object it belongs to: "optimizer 1", "scaler 1", "model 2"
    name: str = ""  #: what was called or made: "clip_grad_norm_", the last operation behind a loss
    targets: tuple[str, ...] = ()  #: labels of the optimizers whose parameters or gradients it touches
    by: str = ""  #: label of the object in whose method it happened; '' the script's own code
    autocast: str = ""  #: dtype of the autocast region around it; '' where there is none
    grad: bool = True  #: gradients were being recorded
    training: bool = True  #: the module was in training mode
    dtype: str = ""  #: of the loss; of an autocast region that torch has switched off, what it was to be
    scaled: bool = False  #: the loss had gone through scaler.scale
    #: The loss was multiplied by a constant as large as a loss scale; what is clipped still is; what an optimizer steps
    #: was divided by it after that.
    by_hand: bool = False
    limit: str = ""  #: whether what is clipped to is multiplied by the loss scale: `IN_SCALE`, `PERHAPS`
    file: str = ""
    line: int = 0
    code: str = ""  #: that line of source
    caller: str = ""  #: "file:line" of the user's that led there, where the line is a library's
    method: str = ""  #: the function of the library that the line is in

    @property
    def location(self) -> str:
        """Return "file:line", or '' where no code of the user's is behind it."""
        return f"{self.file}:{self.line}" if self.file else ""


@dataclass(frozen=True, slots=True)
class LoopObject:
    """An object of the loop: a model, an optimizer, a scaler, a scheduler."""

    label: str  #: "optimizer 1"
    kind: str  #: class name
    settings: Mapping[str, str | float | bool] = field(default_factory=dict)  #: as they were asked for
    file: str = ""  #: where it was made, or first seen
    line: int = 0

    @property
    def family(self) -> str:
        """Return "optimizer", "scaler", ..."""
        return self.label.rpartition(" ")[0]


@dataclass(frozen=True, slots=True)
class Cause:
    """Where the gradient came from that was no finite number."""

    JSON = Shape(optional=("place",))

    parameter: str  #: the first in backward order whose gradient was not finite
    layer: str  #: the module that owns it
    optimizer: str = ""  #: label
    op: str = ""  #: the backward operation where it began; '' where the step was not recorded
    file: str = ""
    line: int = 0
    others: int = 0  #: further parameters with such gradients
    #: The module, or the line outside of modules, where it began in half precision and FP32 does not have it.
    place: str = ""
    #: What FP32 has as well: the module whose input is not finite, with no operation, or that of the operation.
    given: str = ""


@dataclass(frozen=True, slots=True)
class ScaleEvent:
    """A change of the loss scale, or a step that was skipped."""

    step: int  #: number of the update it belongs to, from 0 on
    scaler: str  #: label
    before: float
    after: float
    skipped: bool = False  #: a gradient was not finite, so the optimizer did not step
    cause: Cause | None = None


Round = tuple[Event, ...]


def _is_step(event: Event) -> bool:
    """Tell whether an optimizer is stepped: through a scaler, or by the script itself."""
    return event.kind is Kind.SCALER_STEP or (event.kind is Kind.STEP and not event.by)


@dataclass(frozen=True, slots=True)
class Loop:
    """Everything that was seen of a training loop."""

    JSON = Shape(optional=("scaling", "untrained"))

    rounds: tuple[Round, ...] = ()  #: the different ones, by first occurrence
    order: tuple[tuple[int, int], ...] = ()  #: (which of the rounds, how often in a row)
    things: tuple[LoopObject, ...] = ()
    scales: tuple[ScaleEvent, ...] = ()  #: in order
    first_scales: Mapping[str, float] = field(default_factory=dict)  #: by label of the scaler
    steps: int = 0  #: updates of the weights that were made or skipped
    recorded: tuple[int, ...] = ()  #: numbers of the steps whose operations were recorded
    children: int = 0  #: processes that were started and not looked into
    scaling: str = ""  #: why the loss scale is not known; '' where it is, or where there is none
    untrained: tuple[
        str, ...
    ] = ()  #: parameters whose gradients come in steps that are skipped, and in no other

    @property
    def only_scale(self) -> float:
        """Return the one loss scale that a script has from its begin to its end; 0 where there are others or none."""
        every = {*self.first_scales.values(), *(event.after for event in self.scales)}
        return every.pop() if len(every) == 1 else 0.0

    def thing(self, label: str) -> LoopObject | None:
        """Return the object of a label."""
        return next((thing for thing in self.things if thing.label == label), None)

    def sequence(self, repeats: int = 3) -> Iterator[tuple[int, Event]]:
        """Yield the events in order with the number of their round; more repeats in a row say nothing new."""
        number = 0
        for which, times in self.order:
            for repeat in range(min(times, repeats)):
                for event in self.rounds[which]:
                    yield number + repeat, event
            number += times

    def count(self, kind: Kind) -> int:
        """Return how often a kind of event happened."""
        inside = [sum(event.kind is kind for event in events) for events in self.rounds]
        return sum(inside[which] * times for which, times in self.order)

    def updates(self, scaler: str) -> list[int]:
        """Return the numbers of the steps after which a scaler was updated."""
        return self._updates().get(scaler, [])

    def _updates(self) -> dict[str, list[int]]:
        """Return the same of all scalers, of which a script may make one after the other."""
        found: dict[str, list[int]] = {}
        steps = 0
        for which, times in self.order:
            taken = list(accumulate(map(_is_step, self.rounds[which]), initial=0))
            ends = [
                (event.thing, before - 1)
                for before, event in zip(taken, self.rounds[which], strict=False)
                if event.kind is Kind.UPDATE
            ]
            for _ in range(times):
                for label, end in ends:
                    found.setdefault(label, []).append(max(0, steps + end))
                steps += taken[-1]
        return found

    def update_of(self, step: int) -> tuple[str, int] | None:
        """Return the scaler whose update ended a step, and which of its updates that was; None where none did."""
        ends = {label: steps for label, steps in self._updates().items() if label in self.first_scales}
        found = [
            (end, label, at) for label, steps in ends.items() for at, end in enumerate(steps) if end >= step
        ]
        return min(found)[1:] if found else None

    def skips(self, scaler: str) -> list[int]:
        """Return which of a scaler's updates, from 0 on, came after a step that it had skipped."""
        ends = self.updates(scaler)
        skipped = (event.step for event in self.scales if event.scaler == scaler and event.skipped)
        found = [(bisect_left(ends, step), step) for step in skipped]
        return list(dict.fromkeys(at if at < len(ends) else step for at, step in found))

    def settled(self, scaler: str) -> int | None:
        """Return how many updates a scaler skipped before it let one through; None where it let none through."""
        steps = (e for _, e in self.sequence(1) if e.kind is Kind.SCALER_STEP and e.thing == scaler)
        # it may be the next one's that overflow
        turns = len({target for event in steps for target in event.targets})
        searched = 0
        for update in self.skips(scaler):
            if update - searched >= max(1, turns):
                break
            searched = update + 1
        return None if searched and searched >= (len(self.updates(scaler)) or self.steps) else searched

    @property
    def skipped(self) -> int:
        """Return how many steps were skipped."""
        return sum(event.skipped for event in self.scales)
