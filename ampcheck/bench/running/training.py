"""Short training runs in every precision, paired by seed; whatever ends one is a result.

A scaler settles on a copy first: a short run that spends its steps on halving the scale would say nothing about
training.
"""

import contextlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from ampcheck.bench.result import TrainingCurve
from ampcheck.bench.running.arms import Arm, Settled
from ampcheck.bench.running.precisions import Precision, as_cuda_casts
from ampcheck.observe.step import StepRaised, users_code
from ampcheck.targets.spec import Target

#: The final loss is the mean over this share of the steps.
LAST_SHARE = 0.1
#: Batches the final loss is read from, where the target has as many.
READ = 8
#: Losses kept of a run, evenly over its steps: enough for a curve.
KEPT = 100
#: The metric is read that often in a run, where there is one.
LOOKS = 10


@dataclass(slots=True)
class _Run:
    """What became of the steps of one run."""

    losses: list[float]
    metrics: list[float]
    skipped: int = 0
    status: str = "ok"
    message: str = ""


def train(
    make: Callable[[int], Target], chosen: Precision, seed: int, steps: int, clip: float | None = None
) -> TrainingCurve:
    """Train from the weights and batches of a seed; the random state outside is left as it was."""
    settled = _settled(make, chosen, seed, clip)
    arm = Arm(make(seed), chosen.scaling(init_scale=settled.scale), as_cuda_casts, clip)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        run = _run(arm, steps)
    finite = [loss for loss in run.losses if math.isfinite(loss)]
    last = run.losses[-max(1, round(LAST_SHARE * steps)) :] or [math.nan]
    if run.status == "ok" and run.skipped == steps:
        run.status = "skipped"
        run.message = f"every update is skipped, at loss scales down to {arm.scaler.get_scale():g}"
    elif run.status == "ok" and not all(map(math.isfinite, last)):
        run.status = "diverged"
    course = TrainingCurve(
        seed,
        run.status,
        thinned(run.losses),
        fmean(last) if run.status in {"ok", "skipped"} and finite else math.nan,
        run.skipped,
        arm.scaler.get_scale(),
        message=run.message,
        settling=settled.skipped,
        metrics=tuple(run.metrics),
        metric_steps=tuple(_looks(steps)[: len(run.metrics)]),
    )
    # first, as a batch norm goes on learning while the training loss is read
    course = _validated(course, arm)
    return replace(course, full_loss=_read(arm, seed)) if run.status == "ok" else course


def _settled(make: Callable[[int], Target], chosen: Precision, seed: int, clip: float | None) -> Settled:
    """Return where the scaler settles, found on a copy that is thrown away."""
    arm = Arm(make(seed), chosen, as_cuda_casts, clip)
    start = Settled(ok=True, skipped=0, scale=arm.scaler.get_scale())
    if not arm.scaler.is_enabled():
        return start
    with contextlib.suppress(StepRaised), torch.random.fork_rng(), arm.running():
        torch.manual_seed(seed)
        return arm.settle()
    return start  # the run itself says what is raised


def _run(arm: Arm, steps: int) -> _Run:
    run, looks = _Run([], []), _looks(steps)
    reads = bool(arm.target.validation) and arm.target.metric is not None
    try:
        for begin, end in itertools.pairwise((0, *looks)):
            with arm.running():
                for _ in range(begin, end):
                    before = arm.applied
                    run.losses.append(float(arm.train().detach()))
                    run.skipped += arm.scaler.is_enabled() and arm.applied == before
            if reads:
                with torch.random.fork_rng():  # training goes on as if nobody had looked
                    run.metrics.append(_scores(arm, _in_fp32(arm))[1] or 0.0)
    except StepRaised as raised:
        run.status, run.message = "raised", str(raised)
    return run


def _looks(steps: int) -> list[int]:
    """Return the steps after which a run is looked at, the last one among them."""
    return sorted({round(steps * at / LOOKS) for at in range(1, LOOKS + 1)} - {0})


def _in_fp32(arm: Arm) -> Precision:
    return Precision("fp32", weights=arm.precision.weights)


def _read(arm: Arm, seed: int) -> float:
    """Return the training loss that the run has come to, read in FP32: low precision rounds a small loss to nothing."""
    full = _in_fp32(arm)
    target, model = arm.target, arm.target.model
    with (
        target.active(),
        users_code(),
        as_cuda_casts(arm.device, full, model),
        torch.no_grad(),
        torch.random.fork_rng(),
    ):
        torch.manual_seed(seed)
        return fmean(float(target.loss(model, batch)) for batch in target.batches[:READ])


def _validated(course: TrainingCurve, arm: Arm) -> TrainingCurve:
    """Add loss and metric on the validation batches, in FP32 and in the training precision."""
    if not arm.target.validation or course.status == "raised":
        return course
    low = _scores(arm, arm.precision)
    full = _scores(arm, _in_fp32(arm))
    course = replace(course, validation_loss=full[0], validation_loss_low=low[0])
    return replace(course, metric=full[1], metric_low=low[1])


def _scores(arm: Arm, chosen: Precision) -> tuple[float, float | None]:
    """Return mean loss and metric over the validation batches, the model in evaluation mode meanwhile."""
    target, model = arm.target, arm.target.model
    training = getattr(model, "training", False)
    if training:
        model.eval()
    losses, metrics = [], []
    try:
        with target.active(), users_code(), as_cuda_casts(arm.device, chosen, model), torch.no_grad():
            for batch in target.validation:
                with chosen.region(arm.device.type):
                    losses.append(float(target.loss(model, batch)))
                    if target.metric is not None:
                        metrics.append(float(target.metric(model, batch)))
    finally:
        if training:
            model.train()
    return fmean(losses), fmean(metrics) if metrics else None


def thinned(losses: list[float]) -> tuple[float, ...]:
    """Return at most so many of the losses, each the mean of its stretch, so that curves stay small."""
    if len(losses) <= KEPT:
        return tuple(losses)
    edges = [round(i * len(losses) / KEPT) for i in range(KEPT + 1)]
    return tuple(fmean(losses[a:b]) for a, b in itertools.pairwise(edges))
