"""What can be wrong between the ranks of a job: judged on their merged report."""

from collections.abc import Mapping, Sequence

from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import ScaleEvent
from ampcheck.values.report import Rank, Report
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import clean

DISAGREEMENT = "AMP415"


def ranks_disagree(report: Report) -> list[Finding]:
    """The loss scale of one rank is not that of another, or a step was skipped on some ranks only.

    What it finds: a change of the loss scale, or a skipped step, that one rank of a merged report has and another
    has not.

    Why it matters: ranks hold parts or copies of the same weights. Where one steps and another does not, the copies
    drift apart, or parts of one weight come from different steps; gradients at different scales must not be added.

    What to do: let ranks that see different gradients agree on an overflow before the scaler steps: add their
    found_inf up, as torch.distributed.fsdp.sharded_grad_scaler does; give all ranks the same init_scale.

    Example: a plain GradScaler on ranks whose gradients are not averaged before scaler.step.

    When to ignore it: when the ranks train models of their own.
    """
    found = first_disagreement(report.ranks)
    if found is None:
        return []
    step, scaler, loop_finding = found
    parts = ", ".join(f"{clean(name)} {scale:g}" for name, scale in loop_finding.items())
    lowest = min(loop_finding, key=lambda name: loop_finding[name])
    cause = next((rank for rank in report.ranks if rank.name == lowest), None)
    why = _why(cause, step)
    return [
        Finding(
            DISAGREEMENT,
            "ranks-disagree",
            "training-loop",
            Severity.WARNING,
            f"after step {step} the ranks have different loss scales: {parts}{why}",
            (Site("", "", clean(scaler), Phase.STATE, ""),),
            {"step": step, "ranks": len(loop_finding)},
            tuple(loop_finding),
            fix=("dist.all_reduce(found_inf, op=dist.ReduceOp.MAX)  # as ShardedGradScaler does",),
        )
    ]


def first_disagreement(ranks: Sequence[Rank]) -> tuple[int, str, Mapping[str, float]] | None:
    """Return the first step after which scales differ, the scaler, and the scale on each rank; None for none."""
    labels = sorted({label for rank in ranks for label in rank.first_scales})
    steps = sorted({-1, *(event.step for rank in ranks for event in rank.scales)})
    for step in steps:
        for label in labels:
            known = {rank.name: at for rank in ranks if (at := scale_after(rank, label, step)) is not None}
            if len(set(known.values())) > 1:
                return max(step, 0), label, known
    return None


def scale_after(rank: Rank, scaler: str, step: int) -> float | None:
    """Return the loss scale on a rank after a step; None where it has no such scaler."""
    found = rank.first_scales.get(scaler)
    for event in rank.scales:
        if event.scaler == scaler and event.step <= step:
            found = event.after
    return found


def first_overflow(ranks: Sequence[Rank]) -> tuple[Rank, ScaleEvent] | None:
    """Return the rank that overflowed first, and the step it skipped.

    Where gradients are averaged all ranks skip the same step: it began on the one whose own operations overflowed,
    which is known where the step was recorded.
    """
    skips = [(rank, event) for rank in ranks for event in rank.scales if event.skipped]
    return min(skips, key=lambda skip: (skip[1].step, not (skip[1].cause and skip[1].cause.op)), default=None)


def _why(rank: Rank | None, step: int) -> str:
    event = next((e for e in rank.scales if e.step == step and e.skipped), None) if rank is not None else None
    if rank is None or event is None:
        return ""
    cause = event.cause
    parameter = (
        f": the gradient of {clean(cause.parameter)} was not finite" if cause and cause.parameter else ""
    )
    return f"; {clean(rank.name)} skipped it{parameter}"
