"""What a run of a step came to, in the few numbers that tell whether low precision did harm."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ampcheck.wording import percent

#: Relative L2 error of all gradients, or of the loss, from which on a step is called harmed. Rounding alone
#: gives a few hundredths at most where no operation magnifies it, and an error this large turns the update.
HARM_ERROR = 0.15
#: Share of the gradient elements that matter whose loss is called harm.
HARM_VANISHED = 0.15


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

    @property
    def finite(self) -> bool:
        """Tell whether the step ran and gave numbers."""
        return not (self.raised or self.loss_nonfinite or self.grads_nonfinite)

    @property
    def harmed(self) -> bool:
        """Tell whether the step would not train as in FP32."""
        return (
            not self.finite
            or max(self.grad_error, self.loss_error) > HARM_ERROR
            or self.vanished > HARM_VANISHED
        )

    @property
    def words(self) -> str:
        """Return what happened in a few words."""
        if self.raised:
            return f"raises {self.raised}"
        if self.loss_nonfinite:
            return "loss is not finite"
        if self.grads_nonfinite:
            return f"{len(self.grads_nonfinite)} gradients are not finite"
        lost = f", {percent(self.vanished)} of it lost to zero" if self.vanished else ""
        return f"gradient error {percent(self.grad_error)}{lost}"
