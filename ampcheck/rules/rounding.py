"""Results that are finite and wrong: rounding that an operation magnifies, updates that rounding swallows."""

from ampcheck.evidence import healthy_forward
from ampcheck.findings import Finding, Severity
from ampcheck.outcome import HARM_ERROR, HARM_VANISHED
from ampcheck.plan import Tried
from ampcheck.report import Report, by_place
from ampcheck.trace import Leap, Phase, Site

#: Places in FP32 up to which a plan points at a culprit; a longer list says that rounding is everywhere.
FEW_PLACES = 4
#: Share of the elements FP32 would move that may stay where they are before updates count as lost.
STUCK_SHARE = 0.5


def precision_loss(report: Report) -> list[Finding]:
    """Finite results that are far off: rounding which one place magnifies.

    What it finds: a step whose gradients or loss differ from FP32 by more than 15 %, without overflow and
    without underflow, and the few places whose promotion to FP32 heals it, tried by re-running.

    Why it matters: training runs, the loss falls, and the model learns something else.

    What to do: keep the named place in FP32. It is where coordinates, positions, angles, differences of nearly
    equal numbers or long sums are held in too few bits.

    Example: positions above 2048 in fp16, or above 256 in bf16, which cannot be told apart.

    When to ignore it: when no few places heal the step (then it is a warning): the model magnifies any rounding,
    as deep networks can at random initialisation.
    """
    settled = report.outcomes.get("settled")
    if settled is None or not settled.harmed or settled.raised or settled.vanished > HARM_VANISHED:
        return []
    if not healthy_forward(report):
        return []
    begun = [leap for leap in report.leaps if not flushed(report, leap)]
    if not begun and not (settled.finite and max(settled.grad_error, settled.loss_error) > HARM_ERROR):
        return []
    healing = _healing(report)
    few = 0 < len(healing) <= FEW_PLACES
    numbers = {"grad_error": settled.grad_error, "loss_error": settled.loss_error}
    sites: tuple[Site, ...] = ()
    where = ""
    if begun:
        sites = (begun[0].dropped, begun[0].site)
        numbers["error"] = begun[0].error
        where = f"; it begins at {_told(begun[0])}"
    remedy = f"; with {', '.join(healing)} in FP32 it does not happen" if few else "; no few places heal it"
    return [
        Finding(
            "AMP501",
            "precision-loss",
            "precision-loss",
            Severity.ERROR if few else Severity.WARNING,
            f"{settled.words}{where}{remedy}",
            sites,
            numbers,
        )
    ]


def _told(leap: Leap) -> str:
    place = f"{leap.site.op} in {leap.site.module or 'the root or the loss'}"
    leapt = f"whose result is off by {leap.error:.0%}"
    if leap.dropped == leap.site:
        return f"{place}, {leapt}"
    return f"{place}, {leapt}, because {leap.dropped.op} ({leap.dropped.location}) left it too few bits"


def flushed(report: Report, leap: Leap) -> bool:
    """Tell whether an error begins because most of a result is too small for the format.

    Zeros out of a difference of nearly equal numbers are not that: in FP32 they are large enough.
    """
    reference = by_place(report.reference)
    held = [reference.get(site.place) for site in (leap.site, leap.dropped) if site.dtype == report.dtype]
    return any(
        stats is not None and 2 * stats.flushed(report.format).low > stats.nonzero > 0 for stats in held
    )


def _healing(report: Report) -> tuple[str, ...]:
    """Return the places whose promotion was tried and heals."""
    confirmed = any(verdict.tried is Tried.CONFIRMED for verdict in report.verdicts)
    if report.plan is None or report.plan.precision != report.precision or not confirmed:
        return ()
    return report.plan.fp32_modules + report.plan.fp32_lines


def lost_update(report: Report) -> list[Finding]:
    """Weights or averages held in half precision do not move.

    What it finds: tensors in half precision of which more than half of the elements that FP32 would change in
    the first optimizer steps keep their old value.

    Why it matters: a change below half a unit in the last place is rounded away every time, so it never adds
    up; training stands still, or an averaged copy never follows.

    What to do: keep weights, averages and optimizer state in FP32 and let autocast compute in half precision; or
    use stochastic rounding.

    Example: bf16 weights with a learning rate of 1e-5; an average with decay 0.999 held in bf16.

    When to ignore it: when the optimizer rounds stochastically or compensates (Kahan summation).
    """
    stuck = [loss for loss in report.updates if loss.moved and loss.stuck / loss.moved > STUCK_SHARE]
    moved = sum(loss.moved for loss in report.updates)
    share = sum(loss.stuck for loss in stuck) / moved if moved else 0.0
    if not stuck:
        return []
    parent = _common([loss.name.rpartition(".")[0] for loss in stuck])
    return [
        Finding(
            "AMP504",
            "lost-update",
            "stagnant-update",
            Severity.ERROR,
            f"{share:.0%} of the changes to {len(stuck)} tensors held in half precision are rounded away "
            f"({stuck[0].name}: {stuck[0].stuck} of {stuck[0].moved} elements stay as they were)",
            (Site(parent, "", f"param[{stuck[0].name.rpartition('.')[2]}]", Phase.STATE, report.dtype),),
            {"lost_fraction": share, "tensors": len(stuck)},
        )
    ]


def _common(names: list[str]) -> str:
    parts = [name.split(".") for name in names]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)
