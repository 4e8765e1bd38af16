"""A plan put to work on a model: the torch half of `Plan`."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

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
        from ampcheck.fix.apply_recipe import convert

        convert(plan, model)
    dtype = DTYPES.get(plan.precision)
    if plan.cast == "weights" and dtype is not None:
        cast(model, dtype, plan.fp32_modules)
    back = dtype if plan.outputs == "cast-back" else None
    keep_in_fp32(model, outermost(plan.fp32_modules), back)
    return model


def grad_scaler(plan: Plan, device: str) -> "torch.amp.GradScaler":
    """Return the gradient scaler of a plan; one that does nothing where the plan needs none."""
    import torch

    scaler = plan.scaler
    if scaler is None:
        return torch.amp.GradScaler(device, enabled=False)
    return torch.amp.GradScaler(
        device,
        init_scale=scaler.init_scale,
        growth_factor=scaler.growth_factor,
        backoff_factor=scaler.backoff_factor,
        growth_interval=scaler.growth_interval,
    )


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
