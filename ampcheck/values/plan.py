"""A plan: how to train this model in low precision, as data that can be saved, applied and shown."""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ampcheck.errors import ReportError
from ampcheck.values.codec import Shape, from_plain, to_plain

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import torch

#: Of saved plans.
SCHEMA = 1

#: How the claim of a training check begins.
TRAINS = "trains as FP32"


def _unavailable(*_: Any) -> Any:
    raise ReportError("a plan needs torch to be applied; import ampcheck.fix.apply_plan first")


class Tried(StrEnum):
    """What a re-run said of a claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    NOT_TRIED = "not tried"


#: Where GradScaler starts.
DEFAULT_LOG2_SCALE = 16
DEFAULT_SCALE = 2.0**DEFAULT_LOG2_SCALE


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

    JSON = Shape(
        names={"scaler": "grad_scaler"},
        optional=("recipe", "bf16_modules", "bf16_gemms", "cast", "outputs", "keep_inputs", "keep_state"),
    )

    precision: str  #: fp16, bf16 or fp32
    fp32_modules: tuple[str, ...] = ()  #: run with autocast off and inputs in FP32
    fp32_lines: tuple[str, ...] = ()  #: "file:line" of functional code to run so
    scaler: ScalerPlan | None = None
    recipe: str = ""  #: of FP8 or FP4 that linear layers train with
    bf16_modules: tuple[str, ...] = ()  #: of these, the ones that stay in bf16
    bf16_gemms: tuple[str, ...] = ()  #: the GEMMs that alone have to stay there; nothing: all three
    cast: str = "autocast"  #: or weights: the model itself is cast
    outputs: str = ""  #: what the modules in FP32 give: cast-back or promote; '' where none is kept
    keep_inputs: tuple[str, ...] = ()  #: inputs that are not to be cast with the model
    keep_state: bool = False  #: what a loop carries from call to call stays in FP32

    @property
    def in_bf16(self) -> str:
        """Return what of an FP8 recipe stays in bf16, in a few words; '' where nothing does."""
        if not (self.bf16_modules or self.bf16_gemms):
            return ""
        modules = ", ".join(self.bf16_modules) or "every layer"
        return modules + (f", {' and '.join(self.bf16_gemms)} alone" if self.bf16_gemms else "")

    def apply(self, model: Any) -> Any:
        """Make the plan's modules run in FP32 from now on, and return the model."""
        return APPLICATION.apply(self, model)

    def autocast(self, device: str = "cuda") -> "AbstractContextManager[None]":
        """Return the context to run the forward and the loss in."""
        return APPLICATION.autocast(self, device)

    def grad_scaler(self, device: str = "cuda") -> "torch.amp.GradScaler":
        """Return the gradient scaler to use; one that does nothing where the plan needs none."""
        return APPLICATION.grad_scaler(self, device)

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return json.dumps({"ampcheck_plan": SCHEMA, **to_plain(self)}, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the plan that JSON stands for."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ReportError(
                f"expected a plan written by ampcheck --save-plan, got no JSON: {error}"
            ) from error
        if not isinstance(data, dict) or data.pop("ampcheck_plan", None) != SCHEMA:
            raise ReportError(
                f"expected a plan of schema {SCHEMA}, got something else; write it with ampcheck --save-plan"
            )
        try:
            return from_plain(cls, data)
        except ValueError as error:
            raise ReportError(
                f"expected a plan, got a damaged one: {error}; write it again with ampcheck --save-plan"
            ) from error

    @classmethod
    def load(cls, path: "str | Path") -> Self:
        """Return the plan in a file."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ReportError(f"expected a plan that can be read, got {error}") from error


@dataclass(slots=True)
class Application:
    """What needs torch to put a plan to work. `ampcheck.fix.apply_plan` fills this in."""

    apply: "Callable[[Plan, Any], Any]" = _unavailable
    autocast: "Callable[[Plan, str], AbstractContextManager[None]]" = _unavailable
    grad_scaler: "Callable[[Plan, str], torch.amp.GradScaler]" = _unavailable


APPLICATION = Application()


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of a plan and what re-running said of it."""

    claim: str
    tried: Tried
    before: str = ""  #: the step without the change
    after: str = ""  #: the step with it
