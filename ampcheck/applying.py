"""A plan put to work on a model: the torch half of `Plan`."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ampcheck.observe.promote import keep_in_fp32, lines_in_fp32
from ampcheck.plan import Plan

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": None}


def apply(plan: Plan, model: Any) -> Any:
    """Make the plan's modules run in FP32 from now on, and return the model."""
    keep_in_fp32(model, plan.fp32_modules)
    return model


def grad_scaler(plan: Plan, device: str) -> torch.amp.GradScaler:
    """Return the gradient scaler of a plan; one that does nothing where the plan needs none."""
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
    dtype = _DTYPES[plan.precision]
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device, dtype=dtype, enabled=dtype is not None))
        stack.enter_context(lines_in_fp32(plan.fp32_lines))
        yield
