"""What a run of a step came to, in the few numbers that tell whether low precision did harm."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from ampcheck.values.agreement import Agreement, only_magnifies
from ampcheck.values.codec import Shape
from ampcheck.values.wording import percent, plural, power

#: Relative L2 error of all gradients, or of the loss, from which on a step is called harmed. Rounding alone
#: gives a few hundredths at most where no operation magnifies it, and an error this large turns the update.
HARM_ERROR = 0.15
#: Error of the gradients up to which a step along them lowers the loss by 85 % of what it should, or more.
STILL_DESCENDS = (1.0 - (1.0 - HARM_ERROR) ** 2) ** 0.5
#: Relative error of one part's gradient from which on the part is called harmed, where rounding explains less.
PART_ERROR = 0.3
#: Share of a part's gradient that becomes zero from which on the part is called dead, whatever the others do.
DEAD_SHARE = 0.5
#: Share of all gradient's norm below which a part is faint, and no harm: less than rounding the others to fp16 changes.
FAINT = 2.0**-13
#: The same below which a part does not matter: what FP32 itself rounds away.
PART_FLOOR = 1e-6
#: Norm of all gradients below which they move no weight: Adam divides them by 1e-8 at least, and FP32 has 24 bits.
MOVES_NOTHING = 1e-8 * 2.0**-24
#: Share of the gradient elements that matter whose loss is called harm.
HARM_UNDERFLOW = 0.15
#: The same, from which on it is worth a word.
SHOWN_UNDERFLOW = 1e-4
#: Times the error of rounded weights up to which a step only magnifies rounding, wherever it happens.
#: Low precision rounds about six tensors where that run rounds one: a layer's weights, its input and its result,
#: and the gradients of these three; their errors add up at most.
MAGNIFIES = 6.0
#: Gradient error from which on it is worth knowing what rounding the weights alone gives.
TOLD_ERROR = 0.02
#: Error of the gradients up to which they agree: a loss that is off all the same is a small difference of large terms.
AGREES = 0.05
#: How many times smaller an error must become to be smaller by more than noise.
BETTER = 1.1
#: How many times smaller the error must become before FP32 somewhere counts as what heals: rounding fewer
#: places always makes it a little smaller.
HEALS_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One low-precision run against the FP32 run of the same step."""

    JSON = Shape(optional=("off", "parts", "faint", "state", "next_error", "outputs", "but"))

    log2_scale: int
    raised: str = ""  #: what the user's code raised
    loss: float = 0.0
    loss_error: float = 0.0  #: relative to the FP32 loss
    loss_nonfinite: bool = False  #: although the FP32 loss is finite
    grads_nonfinite: tuple[str, ...] = ()  #: parameters whose gradient holds a new inf or NaN
    grad_error: float = 0.0  #: all parameter gradients together, relative L2
    underflow: float = 0.0  #: share of gradient elements that matter and became zero
    underflow_by: Mapping[str, float] = field(default_factory=dict)  #: the same by parameter, where above 0
    off: tuple[str, ...] = ()  #: parameters whose own gradient is off by more than `HARM_ERROR`
    #: modules whose own gradient is harmed: its error
    parts: Mapping[str, float] = field(default_factory=dict)
    faint: Mapping[str, float] = field(default_factory=dict)  #: the same of modules whose gradient is tiny
    #: tensors left behind that are far off: their error
    state: Mapping[str, float] = field(default_factory=dict)
    #: of FP32's next step, from what the step left behind; inf: it has no finite result
    next_error: float = 0.0
    but: str = ""  #: of FP32 with rounded weights: the module whose weights were not rounded
    outputs: tuple[Agreement, ...] = ()  #: of inference, which has neither a loss nor gradients

    @property
    def finite(self) -> bool:
        """Tell whether the step ran and gave numbers."""
        lost = self.loss_nonfinite or self.grads_nonfinite or any(one.nonfinite for one in self.outputs)
        return not (self.raised or lost)

    @property
    def harmed(self) -> bool:
        """Tell whether the step would not train as in FP32, or the model not give what FP32 gives."""
        if self.outputs:
            return not self.finite or any(one.harmed for one in self.outputs)
        own = not self.finite or self.error > HARM_ERROR or self.underflow > HARM_UNDERFLOW
        return own or bool(self.parts) or self.next_error > HARM_ERROR

    @property
    def error(self) -> float:
        """Return the error of the gradients, of the loss or of an output, whichever is largest.

        Where the gradients agree, a loss that is off is a small difference of large terms.
        """
        loss = self.loss_error if self.grad_error > AGREES else 0.0
        return max((self.grad_error, loss, *(one.error for one in self.outputs)))

    @property
    def worst(self) -> float:
        """Return the largest error: of all gradients, of a part's, or of the step after this one."""
        return max(self.error, self.next_error, *self.parts.values(), 0.0)

    def well(self, precision: str) -> bool:
        """Tell whether a model gives what FP32 gives but for rounding."""
        return self.finite and bool(self.outputs) and all(one.well(precision) for one in self.outputs)

    @property
    def worst_output(self) -> Agreement:
        """Return the output that is furthest off; only where there are any."""
        return max(self.outputs, key=lambda one: (bool(one.nonfinite), one.error / one.limit))

    def magnifies(self, rounded: "Outcome | None") -> bool:
        """Tell whether it is off by no more than rounded weights explains, and by nothing else."""
        if rounded is None or not (self.finite and rounded.finite) or self.underflow > HARM_UNDERFLOW:
            return False
        if self.parts or self.next_error > HARM_ERROR:
            return False
        if self.outputs:
            return self.harmed and only_magnifies(self.outputs, rounded.outputs)
        return self.harmed and all(
            mine <= max(HARM_ERROR, MAGNIFIES * other)
            for mine, other in ((self.grad_error, rounded.grad_error), (self.loss_error, rounded.loss_error))
        )

    def better_than(self, before: "Outcome") -> bool:
        """Tell whether a step comes out better than another by more than noise."""
        if not self.finite or (before.harmed and self.harmed):
            return False
        if not before.finite:
            return True
        return before.worst > BETTER * self.worst or before.underflow >= self.underflow + SHOWN_UNDERFLOW

    def clearly_heals(self, before: "Outcome") -> bool:
        """Tell whether a step is well, and was far worse before."""
        return not self.harmed and (not before.finite or HEALS_FACTOR * self.worst < before.worst)

    @property
    def words(self) -> str:
        """Return what happened in a few words."""
        return self.described(lost=self.underflow >= SHOWN_UNDERFLOW)

    def compared_with(self, other: "Outcome") -> tuple[str, str]:
        """Return what happened here and there, each in words that show what differs."""
        lost = max(self.underflow, other.underflow) > 0
        here, there = self.described(lost=lost), other.described(lost=lost)
        return here, there if here != there or not self.finite else f"{there}: same result in this step"

    def described(self, *, lost: bool) -> str:
        """Return the same, with the share of the gradient that was underflow or without it."""
        if self.raised:
            first = self.raised.splitlines()[0]  # libraries go on with advice that fills a screen
            return f"raises {first}"
        if self.outputs:
            return self.worst_output.words
        if self.loss_nonfinite:
            return "loss is not finite"
        if self.grads_nonfinite:
            return (
                "1 gradient is not finite"
                if len(self.grads_nonfinite) == 1
                else f"{len(self.grads_nonfinite)} gradients are not finite"
            )
        underflow = f", {percent(self.underflow)} of the gradient underflows" if lost else ""
        return f"gradient error {percent(self.grad_error)}{self._of_parts()}{underflow}{self._left_behind()}"

    def _of_parts(self) -> str:
        if not self.parts or self.grad_error > HARM_ERROR:
            return ""
        name, error = max(self.parts.items(), key=lambda part: part[1])
        others = f" and {plural(len(self.parts) - 1, 'other part')}" if len(self.parts) > 1 else ""
        return f", but {percent(error)} in {name or 'the root'}{others}"

    def _left_behind(self) -> str:
        if not self.next_error > HARM_ERROR or not self.state:
            return ""
        name, error = max(self.state.items(), key=lambda one: one[1])
        what = "is not finite" if error == inf else f"is off by {percent(error)}"
        then = "" if self.next_error == inf else f", the next step's gradient by {percent(self.next_error)}"
        return f", and {name} {what} after the step{then}"

    @property
    def at_scale(self) -> str:
        """Return at which loss scale this was, as the end of a phrase; '' where there was none."""
        return f" at {power(self.log2_scale)}" if self.log2_scale else ""


def magnified(outcomes: Mapping[str, Outcome]) -> bool:
    """Tell whether what is wrong with the audited step is only that the model magnifies any rounding."""
    settled = outcomes.get("settled")
    return settled is not None and settled.magnifies(outcomes.get("rounded"))


def rounding_baseline(outcomes: Mapping[str, Outcome], *, other: bool) -> Outcome | None:
    """Return how FP32 came out with its weights rounded to the audited precision, or to the other one."""
    return outcomes.get("rounded_other" if other else "rounded")


def magnification(outcomes: Mapping[str, Outcome], precision: str) -> str:
    """Return why an error that is only magnified is no place's fault, in a sentence."""
    return (
        f"FP32 with only its weights rounded to {precision} is off by {percent(outcomes['rounded'].error)} too: "
        "the model magnifies any rounding at these weights"
    )
