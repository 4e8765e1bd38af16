"""A plan: how to train this model in low precision, as data that can be saved, applied and shown."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ampcheck.errors import ReportError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    import torch

#: Of saved plans.
SCHEMA = 1
#: What only a plan for inference says.
_INFERENCE = frozenset({"cast", "outputs", "keep_inputs"})


#: How the claim of a training check begins.
TRAINS = "trains as FP32"


def _unavailable(*_: Any) -> Any:
    raise ReportError("a plan needs torch to be applied; import ampcheck.fix.apply_plan first")


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
    recipe: str = ""  #: of FP8 or FP4 that linear layers train with
    bf16_modules: tuple[str, ...] = ()  #: of these, the ones that stay in bf16
    bf16_gemms: tuple[str, ...] = ()  #: the GEMMs that alone have to stay there; nothing: all three
    cast: str = "autocast"  #: or weights: the model itself is cast
    outputs: str = ""  #: what the modules in FP32 give: cast-back or promote; '' where none is kept
    keep_inputs: tuple[str, ...] = ()  #: inputs that are not to be cast with the model

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
        fields = {name: value for name, value in asdict(self).items() if name not in _INFERENCE}
        fields |= self.of_inference()
        if self.scaler is not None:
            fields["scaler"] = {
                name: value if isfinite(value) else str(value) for name, value in asdict(self.scaler).items()
            }
        return json.dumps({"ampcheck_plan": SCHEMA, **fields}, indent=2, allow_nan=False) + "\n"

    def of_inference(self) -> "dict[str, Any]":
        """Return what only a plan says for which a model is cast or used, as JSON holds it."""
        if self.cast == "autocast" and not self.outputs:
            return {}
        return {"cast": self.cast, "outputs": self.outputs, "keep_inputs": list(self.keep_inputs)}

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
            data.pop("precision"),
            modules,
            lines,
            None if scaler is None else ScalerPlan.from_fields(scaler),
            data.pop("recipe", ""),
            tuple(data.pop("bf16_modules", ())),
            tuple(data.pop("bf16_gemms", ())),
            cast=data.pop("cast", "autocast"),
            outputs=data.pop("outputs", ""),
            keep_inputs=tuple(data.pop("keep_inputs", ())),
        )

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
