"""A plan put to work on a model: the torch half of `Plan`."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ampcheck.errors import ReportError
from ampcheck.fix.recipe_terms import AO_CASTS, AO_NAMES
from ampcheck.values.plan import APPLICATION, Plan

if TYPE_CHECKING:
    import torch


def apply(plan: Plan, model: Any) -> Any:
    """Make the plan's modules run in FP32 from now on, and return the model.

    Where the plan casts the model itself, this casts it; it has to be the one with FP32 weights.
    """
    from ampcheck.observe.dtypes import DTYPES
    from ampcheck.observe.model.cast_weights import cast, outermost
    from ampcheck.observe.promote import keep_in_fp32

    if plan.recipe:
        _convert(plan, model)
    dtype = DTYPES.get(plan.precision)
    if plan.cast == "weights" and dtype is not None:
        cast(model, dtype, plan.fp32_modules)
    back = dtype if plan.outputs == "cast-back" else None
    keep_in_fp32(model, outermost(plan.fp32_modules), back)
    return model


def _convert(plan: Plan, model: Any) -> Any:
    """Convert a model's layers with torchao as a plan says, and return the model."""
    name = AO_NAMES.get(plan.recipe)
    if name is None:
        raise ReportError(
            f"expected a recipe that converts a model ({', '.join(AO_NAMES)}), got {plan.recipe}; its library builds "
            "layers of its own: write the model with them, as the lines of --save-patch say"
        )
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        from torchao.float8.config import CastConfig, ScalingType
    except ImportError as error:
        raise ReportError(
            f"expected torchao, which has the recipe {plan.recipe}: pip install torchao"
        ) from error
    config = Float8LinearConfig.from_recipe_name(name)
    kept = frozenset(plan.bf16_modules)
    off = {
        cast: CastConfig(scaling_type=ScalingType.DISABLED, target_dtype=getattr(config, cast).target_dtype)
        for gemm in plan.bf16_gemms
        for cast in AO_CASTS[gemm]
    }
    partly = replace(config, **off) if off else config
    if kept or not off:
        convert_to_float8_training(model, config=config, module_filter_fn=lambda _, path: path not in kept)
    if off:
        convert_to_float8_training(
            model, config=partly, module_filter_fn=lambda _, path: not kept or path in kept
        )
    return model


def grad_scaler(plan: Plan, device: str) -> "torch.amp.GradScaler":
    """Return the gradient scaler of a plan; one that does nothing where the plan needs none."""
    import torch

    if plan.scaler is None:
        return torch.amp.GradScaler(device, enabled=False)
    return torch.amp.GradScaler(device, **asdict(plan.scaler))


@contextmanager
def autocast(plan: Plan, device: str) -> Iterator[None]:
    """Run a forward in the plan's precision, its lines in FP32."""
    import torch

    from ampcheck.observe.dtypes import DTYPES
    from ampcheck.observe.promote import lines_in_fp32

    dtype = DTYPES.get(plan.precision)
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device, dtype=dtype, enabled=dtype is not None))
        stack.enter_context(lines_in_fp32(plan.fp32_lines))
        yield


APPLICATION.apply, APPLICATION.autocast, APPLICATION.grad_scaler = apply, autocast, grad_scaler
