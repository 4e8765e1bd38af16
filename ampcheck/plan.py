"""A plan: how to train this model in low precision, as data that can be saved, applied and shown."""

from dataclasses import dataclass
from enum import StrEnum


class Tried(StrEnum):
    """What a re-run said of a claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class ScalerPlan:
    """The arguments of torch.amp.GradScaler."""

    init_scale: float
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run in, what to keep in FP32, and which loss scaler to use."""

    precision: str  #: fp16, bf16 or fp32
    fp32_modules: tuple[str, ...] = ()  #: run with autocast off and inputs in FP32
    fp32_lines: tuple[str, ...] = ()  #: "file:line" of functional code to run so
    grad_scaler: ScalerPlan | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One claim of a plan and what re-running said of it."""

    claim: str
    tried: Tried
    before: str = ""  #: the step without the change
    after: str = ""  #: the step with it
