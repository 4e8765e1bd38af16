"""What one recorded step of a script came to, and how far it was from FP32."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ampcheck.observe.recorder import FORWARD_UNSEEN
from ampcheck.observe.reference.given import TakenAsIs
from ampcheck.observe.reference.picks import Place
from ampcheck.observe.script.delivery import Delivery
from ampcheck.observe.script.scaling.scaled_by_hand import Scaling
from ampcheck.observe.script.second_run import Look
from ampcheck.values.outcome import HARM_ERROR, SHOWN_UNDERFLOW
from ampcheck.values.parts import largest_error, off_by_itself, outcome_of
from ampcheck.values.trace import ErrorJump, PairError, Site, Trace, UpdateLoss

#: How many times as far off the result of one operation is that needs bits which were lost: from what rounding to
#: bfloat16 makes of a number, 2^-9, to what is harm.
_AT_ONCE = 64.0


@dataclass(frozen=True, slots=True)
class Left:
    """How far off a tensor is that a step leaves behind."""

    error: float  #: relative to FP32's; inf: it has a new inf or NaN
    rounded: float  #: the same of FP32 with rounded weights, 0 where that was not tried
    saved: bool  #: it is part of the model's state dictionary


@dataclass(frozen=True, slots=True)
class Beside:
    """What FP32 had in one recorded step, and how far the script was from it."""

    reference: Trace
    errors: Mapping[Site, PairError]
    error_jumps: tuple[ErrorJump, ...]
    rows: Mapping[str, Sequence[float]]  #: by parameter, what `Compare` said
    compared: frozenset[int] = frozenset()  #: identities of the parameters whose gradient FP32 has as well
    state: Mapping[str, Left] = field(default_factory=dict)  #: what modules hold after the step
    look: Look | None = None  #: what a second run has done otherwise than FP32, where there was one
    spared: str = ""  #: the module whose weights it has not rounded
    second: Mapping[str, Sequence[float]] = field(default_factory=dict)  #: its rows
    second_loss: float = 0.0
    updates: tuple[UpdateLoss, ...] = ()  #: of what modules hold in half precision and the step has written
    moved: tuple[TakenAsIs, ...] = ()  #: numbers that the second run has moved
    picks: tuple[TakenAsIs, ...] = ()  #: that are worse than FP32's
    by_zero: tuple[TakenAsIs, ...] = ()  #: comparisons that come out otherwise as a number is zero in float16
    parted: bool = False  #: the second run could not go on with its own picks
    rounded_picks: Mapping[Place, float] = field(default_factory=dict)
    """By how much the picks of FP32 with rounded weights are worse, where that ran too."""
    delivery: Delivery | None = None  #: what optimizers are given of it, as far as they have stepped
    #: rows before the script has computed with gradients by itself, where it has, and where it does
    untouched: Mapping[str, Sequence[float]] = field(default_factory=dict)
    touched_at: tuple[str, int] = ("", 0)
    #: weights many rows of which get no gradient, and have one in FP32: its share of the whole gradient
    dead_rows: Mapping[str, float] = field(default_factory=dict)
    #: where something without the loss scale is added to gradients that hold it, and how large it is beside them
    added: tuple[str, int, float] | None = None
    hidden: tuple[str, int] | None = (
        None  #: where gradients that are not finite, and are in FP32, are made finite
    )

    held: int = 0  #: tensors of models beside their parameters that were compared at its end

    @property
    def given(self) -> frozenset[int]:
        """Identities of the parameters whose gradient was compared when an optimizer was given it."""
        return frozenset(self.delivery.compared) if self.delivery is not None else frozenset()

    @property
    def taken(self) -> tuple[TakenAsIs, ...]:
        """What the second run does not take from the script."""
        return self.picks if self.look is Look.PICKED else self.moved

    @property
    def rounded(self) -> Mapping[str, Sequence[float]]:
        """Rows of FP32 with rounded weights, where that ran too."""
        return self.second if self.look is Look.ROUNDED else {}


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one recorded step came to."""

    step: int
    low: Trace
    precision: str  #: fp16, bf16 or fp32: what its operations ran in
    log2_scale: int
    losses: tuple[float, float]  #: the script's, and FP32's
    beside: Beside | None = None  #: None where FP32 did not run beside it
    scaling: Scaling = field(default_factory=Scaling)  #: where no GradScaler scaled the loss
    last: int = -1  #: the last step of it, where several optimizers take turns; -1: there is one
    #: half-precision numbers from before it entered products: nobody has seen where they came from
    entered: bool = False
    dropped: bool = False  #: its gradients overflowed and were cleared, and no optimizer was given them

    @property
    def whole(self) -> bool:
        """Whether the forward of all that ran backward was seen."""
        return FORWARD_UNSEEN not in self.low.not_audited

    @property
    def overflowed(self) -> bool:
        """Whether a gradient was not finite; one that is finite in FP32, where that is known."""
        if self.beside is None:
            return any(step.nonfinite for step in self.low.steps)
        return any(bool(row[2]) for row in self.beside.rows.values())

    @property
    def brought(self) -> bool:
        """Whether FP32's loss is not finite either: what came before the step has made it so."""
        return self.beside is not None and not math.isfinite(self.losses[1])

    @property
    def far_off(self) -> bool:
        """Whether it is finite and so far from FP32 that it matters what rounding alone would do."""
        if self.beside is None or self.overflowed:
            return False
        outcome = outcome_of(self.beside.rows, *self.losses, self.log2_scale)
        off = outcome.error > HARM_ERROR or off_by_itself(self.beside.rows)
        off = off or bool(self.beside.state or self.beside.dead_rows)
        apart = self.beside.taken and off_by_itself(self.beside.second)
        return outcome.finite and (off or bool(apart))

    @property
    def magnified_by(self) -> str:
        """The module at which bits are lost that one operation needs; "" for none.

        Rounded weights alone move the gradients too. Where an error grows from operation to operation, any rounding
        does the same.
        """
        beside = self.beside
        if beside is None or beside.look is not Look.ROUNDED or not beside.error_jumps:
            return ""
        jump = beside.error_jumps[0]
        if jump.error < max(HARM_ERROR, _AT_ONCE * jump.error_before):
            return ""
        outcome = outcome_of(beside.rows, *self.losses, self.log2_scale)
        rounding = outcome_of(beside.second, beside.second_loss, beside.reference.steps[0].loss, 0)
        magnified = rounding.error > HARM_ERROR and outcome.magnifies(rounding)
        return jump.dropped.module if magnified else ""

    @property
    def matches_reference(self) -> bool:
        """Whether one more such step, compared with FP32, would add nothing.

        In bf16, which has FP32's range: nothing overflows in it a step later. And where FP32 has a gradient for every
        parameter, and the script about the same one.
        """
        if self.beside is None or self.precision != "bf16" or self.overflowed:
            return False
        if self.beside.error_jumps or not self.beside.rows:
            return False
        error, norm, _, lost, live = map(math.fsum, zip(*self.beside.rows.values(), strict=True))
        # what begins at zero wakes up a step later; what stays there may come to count
        paused = bool(self.beside.dead_rows) or any(not row[1] for row in self.beside.rows.values())
        near = error <= HARM_ERROR**2 * norm and largest_error(self.beside.rows) <= HARM_ERROR
        return near and not paused and lost <= SHOWN_UNDERFLOW * live
