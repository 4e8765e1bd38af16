"""A plan over several training steps beside FP32, from the same state: the longer trial."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch

import ampcheck.fix.apply_plan  # noqa: F401  # lets plans be applied
from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from ampcheck.observe.dtypes import DTYPES
from ampcheck.observe.failure import is_refusal
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.model.structure import named_parameters
from ampcheck.observe.promote import in_fp32
from ampcheck.observe.step import Step, Widened, casting_rules, clear_gradients
from ampcheck.targets.seeding import seeded
from ampcheck.targets.spec import Target
from ampcheck.values.plan import DEFAULT_SCALE, TRAINS, Claim, Plan, ScalerPlan, Tried

#: Share of what FP32 gained by which the plan's loss may differ at the end and still be called the same.
SAME_SHARE = 0.1
#: Times the distance between FP32 and FP32 from rounded weights that the plan's loss may be away as well.
SAME_TIMES = 3.0
_START = ScalerPlan(DEFAULT_SCALE)
TrainingCurve = tuple[list[float], int]  #: the loss of each step, and how many updates were skipped


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """What is trained: the model, its batches, its loss and its optimizer."""

    model: Any
    batch: Callable[[int], Any]
    loss: Callable[[Any, Any], Any]
    optimizer: Callable[[Any], torch.optim.Optimizer] | None
    after_step: Callable[[Any], object] | None

    @classmethod
    def of(cls, target: Target) -> "TrainingSetup":
        """Return what a target trains."""
        return cls(target.model, target.batch, target.loss, target.optimizer, target.after_step)

    def build(self) -> torch.optim.Optimizer:
        """Return a new optimizer: the user's, or AdamW with its defaults."""
        return built(self.optimizer, self.model)


def built(make: Callable[[Any], torch.optim.Optimizer] | None, model: Any) -> torch.optim.Optimizer:
    """Return a new optimizer for a model; AdamW with its defaults where nothing makes one."""
    if make is not None:
        return make(model)
    return torch.optim.AdamW([parameter for _, _, parameter in named_parameters(model)])


def trained(setup: TrainingSetup, plan: Plan, steps: int) -> Claim:
    """Return what training with the plan comes to beside FP32, both from the present state."""
    before = Snapshot(setup.model, [setup.batch(index) for index in range(steps)])
    try:
        reference, _ = losses(setup, Plan("fp32"), steps)
        before.restore()
        course, skipped = losses(setup, plan, steps)
        before.restore()
        rounded = _rounded(setup, plan, steps)
    finally:
        before.restore()
    gained = abs(reference[0] - reference[-1])
    apart = abs(course[-1] - reference[-1])
    normal = SAME_TIMES * abs(rounded[-1] - reference[-1]) if isfinite(rounded[-1]) else 0.0
    same = isfinite(apart) and apart <= max(SAME_SHARE * gained, 1e-3 * abs(reference[-1]), normal)
    tried = Tried.CONFIRMED if same else Tried.REFUTED
    return Claim(
        f"{TRAINS} over {steps} steps",
        tried,
        f"FP32: loss {reference[0]:.4g} to {reference[-1]:.4g}",
        f"{plan.precision} with the plan: {course[0]:.4g} to {course[-1]:.4g}, {skipped} steps skipped",
    )


def _rounded(setup: TrainingSetup, plan: Plan, steps: int) -> list[float]:
    """Return the losses of FP32 from weights that were rounded once: what is normal for these weights."""
    dtype = DTYPES.get(plan.precision)
    with torch.no_grad():
        for _, _, parameter in named_parameters(setup.model):
            if dtype is not None and parameter.is_floating_point():
                parameter.copy_(parameter.to(dtype))
    return losses(setup, Plan("fp32"), steps)[0]


def losses(setup: TrainingSetup, plan: Plan, steps: int) -> tuple[list[float], int]:
    """Train and return the loss of each step, and how many updates the scaler skipped."""
    dtype = DTYPES.get(plan.precision)
    device = Step(setup.model, None, setup.loss).device
    lines = [(file, int(line)) for file, _, line in (text.rpartition(":") for text in plan.fp32_lines)]
    if dtype is None:
        Widened(setup.model)
    optimizer, scaler = setup.build(), plan.grad_scaler(device.type)
    found, skipped = [], 0
    for index in range(steps):
        clear_gradients(setup.model)
        with casting_rules(device, dtype), WideCompute(), in_fp32(setup.model, plan.fp32_modules, lines):
            with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                loss = setup.loss(setup.model, setup.batch(index))
            scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
        if setup.after_step is not None:
            setup.after_step(setup.model)
        found.append(float(loss.detach()))
    return found, skipped


class TrainingCurves:
    """Trains a target again and again from one state; the target is as before afterwards."""

    def __init__(self, target: Target, steps: int) -> None:
        self._target, self._steps = target, steps
        self._setup = TrainingSetup.of(target)

    def in_fp32(self) -> TrainingCurve:
        """Return the losses in FP32."""
        return self._trained(Plan("fp32"))

    def as_it_is(self, plan: Plan, scaler: ScalerPlan | None = None) -> TrainingCurve:
        """Return the losses in the precision of a plan, with no other change; none where autocast refuses a step."""
        start = (scaler or _START) if plan.precision == "fp16" else None
        try:
            return self._trained(Plan(plan.precision, scaler=start))
        except RuntimeError as error:
            if not is_refusal(error):
                raise
            return [], 0

    def _trained(self, plan: Plan) -> TrainingCurve:
        with self._target.active(), seeded(0):
            before = Snapshot(self._target.model, [self._target.batch(index) for index in range(self._steps)])
            try:
                return losses(self._setup, plan, self._steps)
            finally:
                before.restore()
