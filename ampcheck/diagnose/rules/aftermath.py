"""Harm that shows after the step: in what it leaves behind, and in what training comes to."""

from dataclasses import replace

from ampcheck.diagnose.rules.makers import held_in_fp32, maker_of
from ampcheck.diagnose.suspects import newly_nonfinite
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.outcome import HARM_ERROR
from ampcheck.values.plan import TRAINS, Tried
from ampcheck.values.report import Report, by_place
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import percent, plural


def state_left_behind(report: Report) -> list[Finding]:
    """A buffer or another tensor that the step leaves behind is wrong, and the next step reads it.

    What it finds: buffers, frozen parameters and tensors that modules or the loss hold, which are not finite after
    the step, or so far off FP32's that FP32's own next step comes out wrong from them; and a later step of several
    that goes wrong only because of what low precision left behind before it.

    Why it matters: the loss and all gradients of this step are right, and the next step's are not: a queue of keys, a
    running average, a codebook or a memory bank holds numbers that low precision has spoilt.

    What to do: compute what is written there in FP32; the named module in FP32 does it where it was tried.

    Example: keys of a queue normalised in half precision, where their squares are zero.

    When to ignore it: when nothing reads the tensor again, not in evaluation either.
    """
    settled, carried = report.outcomes.get("settled"), report.outcomes.get("carried")
    found = []
    if settled is not None and settled.state and settled.next_error > HARM_ERROR:
        found.append(_left(report, dict(settled.state), settled.next_error))
    if carried is not None and carried.harmed:
        message = f"a later step goes wrong because of state that low precision left behind: {carried.words}"
        numbers = {"grad_error": carried.grad_error}
        found.append(_finding(message, (), numbers))
    return found


def _left(report: Report, state: dict[str, float], error: float) -> Finding:
    name = max(state, key=lambda key: state[key])
    worst = state[name]
    what = "is not finite" if worst == float("inf") else f"is off by {percent(worst)}"
    others = f" (and {plural(len(state) - 1, 'more tensor')})" if len(state) > 1 else ""
    then = (
        "the next operation that reads it has no finite result"
        if error == float("inf")
        else f"the gradient of FP32's next step is off by {percent(error)} from there"
    )
    module, _, slot = name.rpartition(".")
    file, line = _where_it_begins(report) if worst == float("inf") else ("", 0)
    fix: tuple[str, ...] = ()
    if not line and worst == float("inf") and (maker := maker_of(report, name)) is not None:
        written = next(iter(maker.changed), maker.location)
        file, line = written.rpartition(":")[0], int(written.rpartition(":")[2])
        fix = (held_in_fp32(report, name),)
    site = Site(module, "", f"param[{slot}]", Phase.STATE, report.dtype, file, line)
    found = _finding(f"{name}{others} {what} after the step: {then}", (site,), {"tensors": len(state)})
    return replace(found, fix=fix)


def _where_it_begins(report: Report) -> tuple[str, int]:
    """Return the first line whose result is finite in FP32 only; ("", 0) where there is none."""
    reference = by_place(report.reference)
    found = [
        one for phase in (Phase.FORWARD, Phase.BACKWARD) for one in newly_nonfinite(report, phase, reference)
    ]
    return next(((site.file, site.line) for site in found if site.line), ("", 0))


def _finding(message: str, sites: tuple[Site, ...], numbers: dict[str, float]) -> Finding:
    return Finding("AMP506", "state-left-behind", "precision-loss", Severity.ERROR, message, sites, numbers)


def training_apart(report: Report) -> list[Finding]:
    """Some steps of training with the plan do not go as they go in FP32.

    What it finds: a training check (--verify-steps) whose loss, at its end, is further from that of FP32 than a tenth
    of what FP32 gained, and than three times what rounding FP32's weights once would move it.

    Why it matters: one step can look right and its consequences add up: in averages, in queues, in lost updates.

    What to do: look at what the steps leave behind; audit several steps (--steps N); train in the other precision.

    Example: a feature queue that holds NaN after the first step.

    When to ignore it: when training is chaotic anyway, and other seeds in FP32 differ by as much.
    """
    apart = [v for v in report.claims if v.claim.startswith(TRAINS) and v.tried is Tried.REFUTED]
    return [
        Finding(
            "AMP507",
            "training-apart",
            "precision-loss",
            Severity.ERROR,
            f"training does not go as in FP32 ({verdict.claim.removeprefix(TRAINS).strip()}): {verdict.before}; "
            f"{verdict.after}",
        )
        for verdict in apart
    ]
