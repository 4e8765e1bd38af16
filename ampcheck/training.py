"""A plan over several training steps beside FP32, from the same state: the longer trial."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.observe.promote import in_fp32
from ampcheck.observe.state import Snapshot
from ampcheck.observe.step import Step, Widened, casting_rules, clear_gradients
from ampcheck.observe.structure import named_parameters
from ampcheck.observe.wide import WideCompute
from ampcheck.plan import Plan, Tried, Verdict

#: Share of what FP32 gained by which the plan's loss may differ at the end and still be called the same.
SAME_SHARE = 0.1
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": None}


@dataclass(frozen=True, slots=True)
class Course:
    """What is trained: the model, its batches, its loss and its optimizer."""

    model: Any
    batch: Callable[[int], Any]
    loss: Callable[[Any, Any], Any]
    optimizer: Callable[[Any], torch.optim.Optimizer] | None
    after_step: Callable[[Any], object] | None

    def build(self) -> torch.optim.Optimizer:
        """Return a new optimizer: the user's, or AdamW with its defaults."""
        if self.optimizer is not None:
            return self.optimizer(self.model)
        return torch.optim.AdamW([parameter for _, _, parameter in named_parameters(self.model)])


def trained(course: Course, plan: Plan, steps: int) -> Verdict:
    """Return what training with the plan comes to beside FP32, both from the present state."""
    before = Snapshot(course.model, [course.batch(index) for index in range(steps)])
    try:
        reference, _ = _losses(course, Plan("fp32"), steps)
        before.restore()
        losses, skipped = _losses(course, plan, steps)
    finally:
        before.restore()
    gained = abs(reference[0] - reference[-1])
    apart = abs(losses[-1] - reference[-1])
    tried = Tried.CONFIRMED if apart <= max(SAME_SHARE * gained, 1e-3 * abs(reference[-1])) else Tried.REFUTED
    return Verdict(
        f"trains as FP32 over {steps} steps",
        tried,
        f"FP32: loss {reference[0]:.4g} to {reference[-1]:.4g}",
        f"{plan.precision} with the plan: {losses[0]:.4g} to {losses[-1]:.4g}, {skipped} steps skipped",
    )


def _losses(course: Course, plan: Plan, steps: int) -> tuple[list[float], int]:
    """Train and return the loss of each step, and how many updates the scaler skipped."""
    dtype = _DTYPES[plan.precision]
    device = Step(course.model, None, course.loss).device
    lines = [(file, int(line)) for file, _, line in (text.rpartition(":") for text in plan.fp32_lines)]
    if dtype is None:
        Widened(course.model)
    optimizer, scaler = course.build(), plan.grad_scaler(device.type)
    losses, skipped = [], 0
    for index in range(steps):
        clear_gradients(course.model)
        with casting_rules(device, dtype), WideCompute(), in_fp32(course.model, plan.fp32_modules, lines):
            with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                loss = course.loss(course.model, course.batch(index))
            scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
        if course.after_step is not None:
            course.after_step(course.model)
        losses.append(float(loss.detach()))
    return losses, skipped
