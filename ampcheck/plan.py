"""A plan: how to train this model in low precision, as data that can be saved, applied and shown."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ampcheck.errors import ReportError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    import torch

#: Of saved plans.
SCHEMA = 1


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

    @classmethod
    def from_fields(cls, fields: "Mapping[str, Any]") -> Self:
        """Return the settings that were written as JSON, where a number that is not finite is text."""
        factors = {name: float(value) for name, value in fields.items() if name != "growth_interval"}
        return cls(**factors, growth_interval=int(fields["growth_interval"]))


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run in, what to keep in FP32, and which loss scaler to use."""

    precision: str  #: fp16, bf16 or fp32
    fp32_modules: tuple[str, ...] = ()  #: run with autocast off and inputs in FP32
    fp32_lines: tuple[str, ...] = ()  #: "file:line" of functional code to run so
    scaler: ScalerPlan | None = None

    def apply(self, model: Any) -> Any:
        """Make the plan's modules run in FP32 from now on, and return the model."""
        from ampcheck.applying import apply

        return apply(self, model)

    def autocast(self, device: str = "cuda") -> "AbstractContextManager[None]":
        """Return the context to run the forward and the loss in."""
        from ampcheck.applying import autocast

        return autocast(self, device)

    def grad_scaler(self, device: str = "cuda") -> "torch.amp.GradScaler":
        """Return the gradient scaler to use; one that does nothing where the plan needs none."""
        from ampcheck.applying import grad_scaler

        return grad_scaler(self, device)

    def to_json(self) -> str:
        """Return the plan as JSON."""
        fields = asdict(self)
        if self.scaler is not None:
            fields["scaler"] = {
                name: value if isfinite(value) else str(value) for name, value in asdict(self.scaler).items()
            }
        return json.dumps({"ampcheck_plan": SCHEMA, **fields}, indent=2, allow_nan=False) + "\n"

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
        scaler = data.pop("scaler")
        modules, lines = tuple(data.pop("fp32_modules")), tuple(data.pop("fp32_lines"))
        return cls(
            data.pop("precision"), modules, lines, None if scaler is None else ScalerPlan.from_fields(scaler)
        )

    @classmethod
    def load(cls, path: "str | Path") -> Self:
        """Return the plan in a file."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ReportError(f"expected a plan that can be read, got {error}") from error


@dataclass(frozen=True, slots=True)
class Verdict:
    """One claim of a plan and what re-running said of it."""

    claim: str
    tried: Tried
    before: str = ""  #: the step without the change
    after: str = ""  #: the step with it
