"""What a run of a step came to, in the few numbers that tell whether low precision did harm."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ampcheck.wording import percent, power

#: Relative L2 error of all gradients, or of the loss, from which on a step is called harmed. Rounding alone
#: gives a few hundredths at most where no operation magnifies it, and an error this large turns the update.
HARM_ERROR = 0.15
#: Share of the gradient elements that matter whose loss is called harm.
HARM_VANISHED = 0.15
#: The same, from which on it is worth a word.
TOLD_VANISHED = 1e-4
#: Times the error of FP32 with rounded weights up to which a step only magnifies rounding, wherever it happens.
#: Low precision rounds about six tensors where that run rounds one: a layer's weights, its input and its result,
#: and the gradients of these three; their errors add up at most.
MAGNIFIES = 6.0
#: How many times smaller the error must become before FP32 somewhere counts as what heals: rounding fewer
#: places always makes it a little smaller.
HEALS_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One low-precision run against the FP32 run of the same step."""

    log2_scale: int
    raised: str = ""  #: what the user's code raised
    loss: float = 0.0
    loss_error: float = 0.0  #: relative to the FP32 loss
    loss_nonfinite: bool = False  #: although the FP32 loss is finite
    grads_nonfinite: tuple[str, ...] = ()  #: parameters whose gradient holds a new inf or NaN
    grad_error: float = 0.0  #: all parameter gradients together, relative L2
    vanished: float = 0.0  #: share of gradient elements that matter and became zero
    vanished_by: Mapping[str, float] = field(default_factory=dict)  #: the same by parameter, where above 0
    off: tuple[str, ...] = ()  #: parameters whose own gradient is off by more than `HARM_ERROR`

    @property
    def finite(self) -> bool:
        """Tell whether the step ran and gave numbers."""
        return not (self.raised or self.loss_nonfinite or self.grads_nonfinite)

    @property
    def harmed(self) -> bool:
        """Tell whether the step would not train as in FP32."""
        return not self.finite or self.error > HARM_ERROR or self.vanished > HARM_VANISHED

    @property
    def error(self) -> float:
        """Return the error of the gradients or of the loss, whichever is larger."""
        return max(self.grad_error, self.loss_error)

    def magnifies(self, rounded: "Outcome | None") -> bool:
        """Tell whether it is off by no more than FP32 with rounded weights explains, and by nothing else."""
        if rounded is None or not (self.finite and rounded.finite) or self.vanished > HARM_VANISHED:
            return False
        return self.harmed and all(
            mine <= max(HARM_ERROR, MAGNIFIES * other)
            for mine, other in (
                (self.grad_error, rounded.grad_error),
                (self.loss_error, rounded.loss_error),
            )
        )

    def clearly_heals(self, before: "Outcome") -> bool:
        """Tell whether a step is well, and was far worse before."""
        return not self.harmed and (not before.finite or HEALS_FACTOR * self.error < before.error)

    @property
    def words(self) -> str:
        """Return what happened in a few words."""
        return self.told(lost=self.vanished >= TOLD_VANISHED)

    def compared_with(self, other: "Outcome") -> tuple[str, str]:
        """Return what happened here and there, each in words that show what differs."""
        lost = max(self.vanished, other.vanished) > 0
        here, there = self.told(lost=lost), other.told(lost=lost)
        return here, there if here != there or not self.finite else f"{there}: no different in this step"

    def told(self, *, lost: bool) -> str:
        """Return the same, with the share of the gradient that was lost to zero or without it."""
        if self.raised:
            first = self.raised.splitlines()[0]  # libraries go on with advice that fills a screen
            return f"raises {first}"
        if self.loss_nonfinite:
            return "loss is not finite"
        if self.grads_nonfinite:
            return f"{len(self.grads_nonfinite)} gradients are not finite"
        told = f", {percent(self.vanished)} of the gradient lost to zero" if lost else ""
        return f"gradient error {percent(self.grad_error)}{told}"

    @property
    def at_scale(self) -> str:
        """Return at which loss scale this was, as the end of a phrase; '' where there was none."""
        return f" at {power(self.log2_scale)}" if self.log2_scale else ""


def magnified(outcomes: Mapping[str, Outcome]) -> bool:
    """Tell whether what is wrong with the audited step is only that the model magnifies any rounding."""
    settled = outcomes.get("settled")
    return settled is not None and settled.magnifies(outcomes.get("rounded"))


def yardstick(outcomes: Mapping[str, Outcome], *, other: bool) -> Outcome | None:
    """Return how FP32 came out with its weights rounded to the audited precision, or to the other one."""
    return outcomes.get("rounded_other" if other else "rounded")


def magnification(outcomes: Mapping[str, Outcome], precision: str) -> str:
    """Return why an error that is only magnified is no place's fault, in a sentence."""
    return (
        f"FP32 with nothing but its weights rounded to {precision} is off by {percent(outcomes['rounded'].error)} too: "
        "the model magnifies any rounding, as many do at random initialisation"
    )
