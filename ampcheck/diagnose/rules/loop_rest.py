"""What a training loop leaves out, or asks in a way that gives no answer."""

from collections import Counter
from collections.abc import Sequence
from math import isfinite

from ampcheck.diagnose.rules.loop_state import (
    active_scalers,
    first_by_place,
    label,
    line_of,
    loop_finding,
    loop_of,
    refused,
    rounds_of,
    uncleared,
)
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import NOT_FINITE, RETURNED, Event, Kind, Loop
from ampcheck.values.report import Report
from ampcheck.values.wording import clean, percent, plural

#: Of a schedule's steps, those by a number that is not finite, from which on that is no accident.
MANY_TIMES = 2
#: What is behind a loss that has been divided by the number of parts it is accumulated from, or does not add up.
_DIVIDED = ("Div", "Mul", "Mean", RETURNED)
#: Share of skipped steps from which on a schedule that moves in them is called off.
MANY_SKIPPED = 0.1
#: The same from which on the schedule has passed without its steps, where that is no few of them.
_MOST_SKIPPED, _SKIPPED_AT_LEAST = 0.25, 20


def undivided_accumulation(report: Report) -> list[Finding]:
    """Gradients are accumulated over several backwards, and the loss is not divided.

    What it finds: a line whose backward runs more than once before the weights are updated, on a loss whose last
    operation is no division or product.

    Why it matters: the gradients are sums over the micro-batches: larger by their number than those of one large batch,
    which moves the learning rate, the clipping limit and the loss scale at which they overflow.

    What to do: divide the loss by the number of accumulated parts before its backward.

    Example: for x in parts: scaler.scale(criterion(model(x))).backward().

    When to ignore it: when the loss is a sum and the learning rate is meant for it, or each backward is another loss.
    """
    loop = loop_of(report)
    bad: dict[tuple[str, int], tuple[Event, int]] = {}
    for events in rounds_of(loop).values():
        backwards = [
            event for event in uncleared(loop, events) if event.kind is Kind.BACKWARD and not event.by
        ]
        for event in first_by_place(backwards):
            times = sum((other.file, other.line) == (event.file, event.line) for other in backwards)
            if times > 1 and not event.name.startswith(_DIVIDED):
                bad.setdefault((event.file, event.line), (event, times))
    return [
        loop_finding(
            "AMP411 undivided-accumulation",
            Severity.INFO,
            f"{times} backwards add up before an update, of a loss that is not divided by their number",
            [event],
            [f"loss = loss / {times}", event.code or "scaler.scale(loss).backward()"],
            {"backwards": times},
        )
        for event, times in bad.values()
    ]


def schedule_on_skipped_steps(report: Report) -> list[Finding]:
    """The learning-rate schedule moves on in steps that the scaler has skipped.

    What it finds: skipped steps in a loop that steps its scheduler as often as its scaler; a scheduler that is stepped
    between the backward and scaler.step, where nobody knows yet whether the step will be skipped.

    Why it matters: the warm-up passes while no weight moves; torch warns that the scheduler was called before the
    optimizer, and the first learning rate is never used.

    What to do: step the scheduler after scaler.update(), and only when the scale has not fallen.

    Example: scaler.step(optimizer); scaler.update(); scheduler.step(), with a loss scale that starts too high.

    When to ignore it: where a few steps at the start make no difference to the schedule.
    """
    loop = loop_of(report)
    early = _before_the_step(loop)
    if early:
        return [_too_early(loop, event) for event in first_by_place(early)]
    schedules = [e for _, e in loop.sequence(1) if e.kind is Kind.SCHEDULE and not e.by]
    moved = sum(times * _moves(loop.rounds[which]) for which, times in loop.order)
    attempts = loop.count(Kind.SCALER_STEP) or loop.steps + loop.skipped  # by a scaler, or by hand
    if not loop.skipped or not schedules or moved < attempts:
        return []
    share = loop.skipped / attempts
    too_many = share >= _MOST_SKIPPED and loop.skipped >= _SKIPPED_AT_LEAST
    warns = Severity.WARNING if share >= MANY_SKIPPED else Severity.INFO
    return [
        loop_finding(
            "AMP412 schedule-on-skipped-steps",
            Severity.ERROR if too_many else warns,
            f"{plural(loop.skipped, 'skipped step')} ({percent(share)}) still advanced the schedule",
            first_by_place(schedules)[:1],
            [
                "scale = scaler.get_scale()",
                line_of(loop, Kind.UPDATE, "scaler.update()"),
                "if scaler.get_scale() >= scale:",
                f"    {schedules[0].code or 'scheduler.step()'}",
            ],
            {"skipped": loop.skipped},
        )
    ]


def infinite_metric(report: Report) -> list[Finding]:
    """A schedule is stepped with inf or NaN, and the training losses are finite.

    What it finds: ReduceLROnPlateau that is stepped with inf or NaN again and again, in a script whose recorded
    losses are finite.

    Why it matters: no epoch is better than the one before, so the learning rate is cut until nothing is learned.

    What to do: sum losses and errors in FP32: total += loss.float(), or loss.item().

    Example: the losses of an epoch added up in float16, whose largest number is 65504.

    When to ignore it: when the metric is infinite in FP32, too.
    """
    loop = loop_of(report)
    steps = [event for _, event in loop.sequence() if event.kind is Kind.SCHEDULE]
    bad = [event for event in steps if event.name == NOT_FINITE]
    losses = [step.loss for step in report.low.steps]
    if len(bad) < MANY_TIMES or 2 * len(bad) < len(steps) or report.precision == "fp32":
        return []
    if not losses or not all(map(isfinite, losses)):
        return []
    return [
        loop_finding(
            "AMP422 infinite-metric",
            Severity.ERROR,
            f"ReduceLROnPlateau is stepped with inf or NaN, {len(bad)} times of {len(steps)}; the training losses are "
            "finite. It sees no progress and cuts the learning rate",
            first_by_place(bad)[:1],
            ["total += loss.float()  # what the metric is added up in: FP32"],
            {"times": len(bad)},
        )
    ]


def _before_the_step(loop: Loop) -> list[Event]:
    """Return where the schedule moves on between a backward and the scaler's step; of a loop with one optimizer."""
    found: list[Event] = []
    for events in rounds_of(loop).values() if len(label(loop, "optimizer")) == 1 else ():
        kinds = [event.kind for event in events]
        if Kind.BACKWARD not in kinds or Kind.SCALER_STEP not in kinds:
            continue
        between = events[kinds.index(Kind.BACKWARD) : kinds.index(Kind.SCALER_STEP)]
        found += [event for event in between if event.kind is Kind.SCHEDULE and not event.by]
    return found


def _moves(events: Sequence[Event]) -> int:
    """Return how often a schedule moves in a round; of several, the one that moves most."""
    each = Counter(event.thing for event in events if event.kind is Kind.SCHEDULE and not event.by)
    return max(each.values(), default=0)


def _too_early(loop: Loop, event: Event) -> Finding:
    return loop_finding(
        "AMP412 schedule-on-skipped-steps",
        Severity.WARNING,
        "the schedule moves on before scaler.step, which may skip the step; the first learning rate is never used",
        [event],
        [
            line_of(loop, Kind.SCALER_STEP, "scaler.step(optimizer)"),
            line_of(loop, Kind.UPDATE, "scaler.update()"),
            event.code or "scheduler.step()",
        ],
    )


def scaler_not_saved(report: Report) -> list[Finding]:
    """Checkpoints hold the optimizer and leave the scaler out.

    What it finds: a script that saves the state of an optimizer and never that of the GradScaler it uses.

    Why it matters: after a resume the scale starts at 65536 again, skips steps until it has found its place, and grows
    back for thousands of steps.

    What to do: save scaler.state_dict() beside the optimizer's, and load it.

    Example: torch.save({"model": ..., "optimizer": optimizer.state_dict()}, path).

    When to ignore it: when training is never resumed.
    """
    loop = loop_of(report)
    kinds = {event.kind for _, event in loop.sequence(1)}
    steps = {event.thing for _, event in loop.sequence(1) if event.kind is Kind.SCALER_STEP}
    saved = Kind.SAVE_OPTIMIZER in kinds and Kind.SAVE in kinds
    if not saved or Kind.SAVE_SCALER in kinds or not steps & active_scalers(loop):
        return []
    where = [event for _, event in loop.sequence(1) if event.kind is Kind.SAVE]
    return [
        loop_finding(
            "AMP413 scaler-not-saved",
            Severity.WARNING,
            "the checkpoint holds the optimizer's state and not the scaler's: a resumed run starts at the first scale",
            first_by_place(where)[:1],
            ['checkpoint["scaler"] = scaler.state_dict()', 'scaler.load_state_dict(checkpoint["scaler"])'],
        )
    ]


def private_overflow_check(report: Report) -> list[Finding]:
    """The script asks the scaler for an overflow by an attribute that it does not have.

    What it finds: a read of an attribute such as `scaler._found_inf`, which GradScaler never sets.

    Why it matters: behind getattr with a default, or hasattr, the check never finds anything: overflows look like
    healthy steps.

    What to do: compare the scale before and after scaler.update(): it falls exactly when a step was skipped.

    Example: if getattr(scaler, "_found_inf", 0): print("overflow").

    When to ignore it: never; the attribute does not exist.
    """
    loop = loop_of(report)
    bad = [event for _, event in loop.sequence(1) if event.kind is Kind.PEEK]
    return [
        loop_finding(
            "AMP414 private-overflow-check",
            Severity.WARNING,
            f"GradScaler has no {clean(event.name)}: this check detects no overflow",
            [event],
            [
                "scale = scaler.get_scale()",
                line_of(loop, Kind.UPDATE, "scaler.update()"),
                "overflowed = scaler.get_scale() < scale",
            ],
        )
        for event in first_by_place(bad)
    ]


def cleared_before_step(report: Report) -> list[Finding]:
    """Gradients are cleared between the backward and the step that should use them.

    What it finds: scaler.step(optimizer) at which a script ended, with optimizer.zero_grad() behind the last backward.

    Why it matters: the optimizer has no gradients to step with; torch stops with "No inf checks were recorded for this
    optimizer". Without a scaler the step would silently do nothing.

    What to do: clear the gradients before the backward, or after the step.

    Example: scaler.scale(loss).backward(); optimizer.zero_grad(); scaler.step(optimizer).

    When to ignore it: never.
    """
    loop = loop_of(report)
    last = refused(loop)
    if last is None or loop.skipped:
        return []
    since: list[Event] = []
    for _, event in loop.sequence():
        since = [] if event.kind is Kind.BACKWARD else [*since, event]
    cleared = [e for e in since if e.kind is Kind.ZERO_GRAD and {e.thing, *e.targets} & set(last.targets)]
    backward = line_of(loop, Kind.BACKWARD, "")
    return [
        loop_finding(
            "AMP420 cleared-before-step",
            Severity.ERROR,
            "the gradients are cleared between the backward and scaler.step, which has none to step with",
            [event],
            [event.code or "optimizer.zero_grad()", backward, last.code or "scaler.step(optimizer)"],
        )
        for event in cleared[:1]
        if backward
    ]
