"""The precisions: each a context to run the forward in, and a scaler."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from ampcheck.bench.result import PRECISIONS
from ampcheck.bench.running.rounded import RoundedProducts
from ampcheck.fix.apply_plan import grad_scaler
from ampcheck.inference.casting import cast_inputs
from ampcheck.observe.cuda_on_cpu.stand_in import autocast_stands_in
from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from ampcheck.observe.dtypes import DTYPES
from ampcheck.observe.fp8.emulate import Emulation, emulated
from ampcheck.observe.model.cast_weights import cast
from ampcheck.observe.model.structure import is_compiled, modules
from ampcheck.observe.promote import in_fp32
from ampcheck.observe.step import casting_rules
from ampcheck.targets.spec import Target
from ampcheck.values.plan import DEFAULT_SCALE, Plan, ScalerPlan
from ampcheck.values.recipes import Recipe, is_recipe, recipe

_PLAIN = Plan("fp32")
_DTYPES = {**DTYPES, "amp": torch.float16}
#: Rows in which the model itself is cast, without autocast.
_WEIGHTS = {"half": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Precision:
    """How a step is run: the dtype autocast casts to, the scaler, TF32, and a plan's places in FP32."""

    name: str
    dtype: torch.dtype | None = None
    tf32: bool = False
    plan: Plan = _PLAIN
    recipe: Recipe | None = None  #: of FP8 or FP4, emulated
    weights: torch.dtype | None = None  #: what the model and its inputs are cast to

    def held(self, target: Target) -> Target:
        """Return a target as this precision holds it: its model cast in place, where the weights are."""
        dtype = self.weights
        if dtype is None:
            return target
        cast(target.model, dtype)
        batches, validation = (
            [cast_inputs(one, dtype) for one in some] for some in (target.batches, target.validation)
        )
        return replace(target, batches=batches, validation=validation)

    def scaler(self, device: str) -> torch.amp.GradScaler:
        """Return a new scaler; one that does nothing where there is none."""
        return grad_scaler(self.plan, device)

    def scaling(self, **changes: Any) -> "Precision":
        """Return this precision with another scale or growth interval of its scaler, where it has one."""
        scaler = self.plan.scaler
        return (
            self
            if scaler is None
            else replace(self, plan=replace(self.plan, scaler=replace(scaler, **changes)))
        )

    @contextmanager
    def places(self, model: Any) -> Iterator[None]:
        """Hold a plan's modules and lines in FP32."""
        lines = [
            (file, int(line)) for file, _, line in (text.rpartition(":") for text in self.plan.fp32_lines)
        ]
        with in_fp32(model, self.plan.fp32_modules, lines):
            yield

    @contextmanager
    def region(self, device: str) -> Iterator[None]:
        """Run the forward and the loss in this precision."""
        with torch.autocast(device, dtype=self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            yield


def precision(name: str, plan: Plan | None = None) -> Precision:
    """Return a precision by name."""
    if name not in PRECISIONS:
        raise ValueError(f"expected a precision of {', '.join(PRECISIONS)}, got {name!r}")
    if name == "plan":
        held = plan or Plan("fp16", scaler=ScalerPlan(DEFAULT_SCALE))
        return Precision(name, _DTYPES.get(held.precision), plan=held)
    if is_recipe(name):
        return Precision(name, torch.bfloat16, recipe=recipe(name.partition(":")[2]))
    scaled = Plan("fp16", scaler=ScalerPlan(DEFAULT_SCALE)) if name == "amp" else Plan("fp32")
    return Precision(name, _DTYPES.get(name), name == "tf32", scaled, weights=_WEIGHTS.get(name))


@contextmanager
def as_it_is(device: torch.device, chosen: Precision, model: Any) -> Iterator[None]:
    """Let the machine do what it does in a precision: its own autocast, its own kernels. For time and memory."""
    with ExitStack() as stack:
        # the compiler asks for autocast's state and trusts no one else's
        if not any(map(is_compiled, modules(model))):
            stack.enter_context(autocast_stands_in(device.type, enabled=chosen.dtype is not None))
        stack.enter_context(_tf32(allowed=chosen.tf32))
        stack.enter_context(chosen.places(model))
        yield


@contextmanager
def as_cuda_casts(device: torch.device, chosen: Precision, model: Any) -> Iterator[None]:
    """Cast as CUDA does, on a CPU too: products of rounded numbers, summed in FP32. For accuracy."""
    with ExitStack() as stack:
        stack.enter_context(casting_rules(device, chosen.dtype))
        stack.enter_context(_tf32(allowed=chosen.tf32))
        if device.type == "cpu" and (chosen.dtype or chosen.weights) is not None:
            stack.enter_context(WideCompute())
        if device.type == "cpu" and chosen.tf32:
            stack.enter_context(RoundedProducts())
        if chosen.recipe is not None:
            stack.enter_context(emulated(model, device.type, Emulation(chosen.recipe)))
        stack.enter_context(chosen.places(model))
        yield


@contextmanager
def _tf32(*, allowed: bool) -> Iterator[None]:
    """Set what FP32 products are made of, and put it back."""
    if not torch.cuda.is_available():
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        matmul.allow_tf32 = cudnn.allow_tf32 = allowed
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
