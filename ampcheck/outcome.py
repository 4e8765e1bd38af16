"""What a run of a step came to, in the few numbers that tell whether low precision did harm."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Outcome:
    """One low-precision run against the FP32 run of the same step."""

    log2_scale: int
    raised: str = ""  #: what the user's code raised
    loss: float = 0.0
    loss_error: float = 0.0  #: relative to the FP32 loss
    loss_nonfinite: bool = False
    grads_nonfinite: tuple[str, ...] = ()  #: parameters whose gradient holds an inf or NaN
    grad_error: float = 0.0  #: all parameter gradients together, relative L2
    vanished: float = 0.0  #: share of gradient elements that matter and became zero
    vanished_by: dict[str, float] = field(default_factory=dict)  #: the same by parameter, where above 0

    @property
    def finite(self) -> bool:
        """Tell whether the step ran and gave numbers."""
        return not (self.raised or self.loss_nonfinite or self.grads_nonfinite)
