"""What the recorded steps of a script came to: how far off they are, and what explains that."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import fsum, inf

from ampcheck.observe.script.recorded import Beside, Recorded
from ampcheck.observe.script.second_run import Look
from ampcheck.observe.script.state.left_behind import LeftBehind
from ampcheck.observe.script.workers import Workers
from ampcheck.run.makers import gradient_given
from ampcheck.values.doubts import Doubt, DoubtKind
from ampcheck.values.outcome import DEAD_SHARE, HARM_ERROR, HARM_UNDERFLOW, MAGNIFIES, Outcome
from ampcheck.values.parts import but_for_noise, by_chance, dead_parts, faint_parts, harmed_parts, outcome_of
from ampcheck.values.trace import Phase

#: How many times as far off as after the backward gradients are that were changed since.
_FURTHER = 2.0
#: Of what rounding all weights comes to, what is left where those of one module are not rounded.
_REST = 0.25
#: Of a weight's whole gradient, what rows of it must have in FP32 so that they count.
_COUNTS = 0.01
#: How many times the limit one step of many may be off that comes alone, and how many compared steps must follow it.
_PASSING, _FOLLOWING = 2.0, 8


def script_outcomes(judged: Sequence[Recorded]) -> dict[str, Outcome]:
    """Return the worst that the steps came to, and what rounding their weights alone comes to where that was tried."""
    tried, found = first_rounded(judged), _compared(judged)
    found = [one for number, one in enumerate(found) if not _passes(found[number:])]
    if not found:
        return {}
    settled, beside = max(
        found, key=lambda one: (one[0].harmed and not is_explained(one[0], one[1], tried), _badness(one[0]))
    )
    rounds = _rounds(beside, tried)
    return {"settled": settled} | ({} if rounds is None else {"rounded": _rounding(rounds)})


def with_ruined(
    outcomes: dict[str, Outcome], recorded: Sequence[Recorded], left: LeftBehind
) -> dict[str, Outcome]:
    """Add what is ruined at the end, and a step has made so that the scaler skipped; or any step, in float16 alone."""
    besides = [step.beside for step in recorded if step.beside is not None]
    each = (item for beside in besides for item in beside.state.items())
    lost = {name: inf for name, one in each if one.error == inf and one.saved and name in left.ruined}
    lost |= dict.fromkeys(left.overflown, inf)
    settled = outcomes.get("settled")
    if not lost or settled is None:
        return outcomes
    return {**outcomes, "settled": replace(settled, state={**settled.state, **lost}, next_error=inf)}


def passing(judged: Sequence[Recorded]) -> list[tuple[float, int]]:
    """Return how far off steps are that are no harm because of those after them, and which ones."""
    found, full = _compared(judged), [step for step in judged if step.beside is not None]
    return [
        (found[number][0].error, step.step) for number, step in enumerate(full) if _passes(found[number:])
    ]


def _compared(judged: Sequence[Recorded]) -> list[tuple[Outcome, Beside]]:
    full = [(step.beside, step) for step in judged if step.beside is not None]
    chance, tried = by_chance([_rows(beside) for beside, _ in full]), first_rounded(judged)
    found = [(_without(outcome_of_step(beside, step, tried), chance), beside) for beside, step in full]
    dead = _dead_rows([beside for beside, _ in full])
    return [
        (
            replace(outcome, parts={**outcome.parts, **dict.fromkeys(dead & beside.dead_rows.keys(), 1.0)}),
            beside,
        )
        for outcome, beside in found
    ]


def _dead_rows(steps: Sequence[Beside]) -> frozenset[str]:
    """Return the weights rows of which get no gradient in any of some steps, and in FP32 come to count."""
    found = dict[str, list[float]]()
    for step in steps:
        for name in step.rows:
            found.setdefault(name, []).append(step.dead_rows.get(name, 0.0))
    return frozenset(
        name for name, shares in found.items() if len(shares) > 1 and all(shares) and max(shares) > _COUNTS
    )


def _passes(found: Sequence[tuple[Outcome, Beside]]) -> bool:
    """Tell whether the first of some steps is a little off, and the steps from it on are not, taken together.

    Many steps are compared, and one of them may have a gradient that is small by chance.
    """
    first, names = found[0][0], _rows(found[0][1]).keys()
    alike = [outcome for outcome, other in found if _rows(other).keys() == names]
    a_little = first.error <= _PASSING * HARM_ERROR and not replace(first, grad_error=0.0).harmed
    if not (first.harmed and a_little and len(alike) > _FOLLOWING):
        return False
    return fsum(outcome.error**2 for outcome in alike) <= HARM_ERROR**2 * len(alike)


def without_one(judged: Sequence[Recorded]) -> list[Recorded]:
    """Return steps with what rounding weights comes to, but for one module's, where that is little of it.

    What that module loses then is no noise of the model.
    """
    besides = [step.beside for step in judged if step.beside is not None]
    spared = next((one for one in besides if one.look is Look.SPARED), None)
    every = next((one for one in besides if one.rounded), None)
    if spared is None or every is None:
        return list(judged)
    rest = _rounding(replace(spared, look=Look.ROUNDED)).error
    if rest > HARM_ERROR or rest > _REST * _rounding(every).error:
        return list(judged)
    looks = {id(spared): Look.ROUNDED, id(every): None}
    return [
        step
        if step.beside is None or id(step.beside) not in looks
        else replace(step, beside=replace(step.beside, look=looks[id(step.beside)]))
        for step in judged
    ]


def is_explained(outcome: Outcome, beside: Beside | None, tried: Beside | None) -> bool:
    """Tell whether a step is off by no more than what rounding weights comes to, in that step or one that was tried."""
    rounds = _rounds(beside, tried)
    return rounds is not None and outcome.magnifies(_rounding(rounds))


def _rounds(beside: Beside | None, tried: Beside | None) -> Beside | None:
    """Return a step itself, if FP32 ran with rounded weights in it, and one that was tried otherwise.

    Where little is left to learn, gradients are small, and rounding weighs more than it did at first.
    """
    return beside if beside is not None and beside.rounded else tried


def _without(outcome: Outcome, parts: Collection[str]) -> Outcome:
    return replace(outcome, parts={name: off for name, off in outcome.parts.items() if name not in parts})


def first_rounded(steps: Sequence[Recorded]) -> Beside | None:
    """Return the first step in which FP32 ran with rounded weights as well."""
    return next((step.beside for step in steps if step.beside is not None and step.beside.rounded), None)


def _rounding(tried: Beside) -> Outcome:
    found = outcome_of(tried.rounded, tried.second_loss, tried.reference.steps[0].loss, 0)
    return replace(found, but=tried.spared)


def script_doubts(judged: Sequence[Recorded]) -> tuple[Doubt, ...]:
    """Return what steps have taken from the script that a second FP32 run did without."""
    tried = first_rounded(judged)
    rounded = tried.rounded if tried is not None else {}
    found = list[Doubt]()
    for step, beside in ((one, one.beside) for one in judged if one.beside is not None and one.beside.taken):
        outcome = outcome_of(beside.second, beside.second_loss, beside.reference.steps[0].loss, 0)
        parts = harmed_parts(beside.second, rounded) | dead_parts(beside.second)
        outcome = replace(outcome, parts=parts)
        harms = outcome.harmed and not outcome.magnifies(_rounding(tried) if tried is not None else None)
        kind = DoubtKind.GIVEN if beside.look is Look.MOVED else DoubtKind.PICKED
        if kind is DoubtKind.PICKED and tried is not None:
            harms = harms and _picks_otherwise(tried)
        if kind is DoubtKind.PICKED and beside.parted and not harms:
            found += _after_overflow(step)
            continue
        first, names = beside.taken[0], tuple(dict.fromkeys(one.name for one in beside.taken))
        part = max(parts, key=lambda name: parts[name], default="")
        found.append(Doubt(kind, names, first.file, first.line, outcome.worst, part, harms))
    return (*found, *_by_zero(judged), *_changed(judged, tried), *_added(judged))


def evaluated(workers: Workers) -> Iterator[Doubt]:
    """Yield what overflows in an evaluation, or decides by wrong numbers, so that a metric is off or stands still.

    And what overflows in threads of the script's own that read what comes of it, or pick by it.
    """
    evaluation = workers.evaluation
    for file, line, times, off in evaluation.misled[:1]:
        yield Doubt(DoubtKind.EVALUATED, (), file, line, off, harms=True, times=times)
    if evaluation.found is not None:
        op, file, line, off = evaluation.found
        names = (op,) if op else ()
        yield Doubt(DoubtKind.EVALUATED, names, file, line, off, harms=True, overflows=not op)
    for op, file, line, off in workers.found:
        names = (op,) if op else ()
        yield Doubt(DoubtKind.EVALUATED, names, file, line, off, harms=True, overflows=True)


def _by_zero(judged: Sequence[Recorded]) -> Iterator[Doubt]:
    """Yield comparisons that come out otherwise because a number is zero in float16."""
    found = dict.fromkeys(one for step in judged if step.beside is not None for one in step.beside.by_zero)
    for one in found:
        yield Doubt(DoubtKind.PICKED, (one.name,), one.file, one.line, 1.0, harms=True, by_zero=True)


def _added(judged: Sequence[Recorded]) -> Iterator[Doubt]:
    """Yield what is added to gradients without the loss scale that they hold, and what hides that they overflow."""
    for beside in filter(None, (step.beside for step in judged)):
        if beside.added is not None:
            yield Doubt(DoubtKind.ADDED, (), *beside.added, harms=True)
        if beside.hidden is not None:
            yield Doubt(DoubtKind.HIDDEN, (), *beside.hidden, 1.0, overflows=True)


def _after_overflow(step: Recorded) -> Iterator[Doubt]:
    """Yield picks that are far worse than FP32's in a step in which the forward overflows, and FP32's does not."""
    beside = step.beside
    far = [one for one in beside.picks if one.far] if beside is not None else []
    if beside is None or not far:
        return
    fine = {site.place for site, stats in beside.reference.sites.items() if not stats.nonfinite}
    sites = ((site, stats) for site, stats in step.low.sites.items() if site.phase is Phase.FORWARD)
    if any(stats.infs and site.place in fine for site, stats in sites):
        worst = max(far, key=lambda one: one.share)
        known = DoubtKind.PICKED, (worst.name,), worst.file, worst.line, worst.share
        yield Doubt(*known, harms=True, overflows=True)


def _changed(judged: Sequence[Recorded], tried: Beside | None) -> Iterator[Doubt]:
    """Yield gradients that go wrong between the backward and the optimizer."""
    second = tried.delivery.second if tried is not None and tried.delivery is not None else {}
    chance = by_chance([step.beside.delivery.rows for step in judged if step.beside and step.beside.delivery])
    for step in judged:
        given = step.beside.delivery if step.beside is not None else None
        if step.beside is None or given is None:
            continue
        before = outcome_of_step(step.beside, step, tried)
        if before.harmed:
            continue
        if given.zeroed_at[1]:
            yield Doubt(DoubtKind.CHANGED, (), *given.zeroed_at, 1.0, harms=True, overflows=True)
            continue
        rows = given.rows or (step.beside.rows if step.beside.untouched else {})
        outcome = outcome_of(rows, 0.0, 0.0, 0)
        found = harmed_parts(rows, second) | dead_parts(rows)
        parts = {name: error for name, error in found.items() if name not in chance}
        outcome = replace(outcome, parts=parts)
        if not outcome.finite or not outcome.harmed or outcome.worst < _FURTHER * before.worst:
            continue  # or it was as far off after the backward
        part = max(parts, key=lambda name: parts[name], default="")
        changed = (where for name, where in given.places.items() if name.startswith(part) and where[1])
        place = next(changed, step.beside.touched_at)
        place = place if place[1] else gradient_given(site.file for site in step.low.sites)
        kept = (given.kept[place],) if place in given.kept else ()
        yield Doubt(DoubtKind.CHANGED, kept, *place, outcome.worst, part, harms=True)


def _picks_otherwise(tried: Beside) -> bool:
    """Tell whether picks are further from FP32's than rounded weights explain."""
    known = tried.rounded_picks
    return any(one.worse > MAGNIFIES * known.get((one.name, one.file, one.line), 0.0) for one in tried.picks)


def _rows(beside: Beside) -> dict[str, Sequence[float]]:
    """Return the comparisons of what the backward has left.

    Of a parameter that is in no module it is what its optimizer was given, where most of that became zero.
    """
    given = beside.delivery.rows if beside.delivery is not None else {}
    bare = {name.lstrip("."): row for name, row in given.items() if name.startswith(".")}
    dead = {name: row for name, row in bare.items() if row[3] > DEAD_SHARE * row[4]}
    return {**dead, **(beside.untouched or beside.rows)}


def outcome_of_step(beside: Beside, step: Recorded, tried: Beside | None) -> Outcome:
    """Return what a step came to, beside FP32 and what rounded weights do."""
    rows = _rows(beside)
    rounded = beside.rounded or (tried.rounded if tried is not None else {})
    found = outcome_of(but_for_noise(rows, rounded), *step.losses, step.log2_scale)
    if not found.finite:
        return found
    parts = harmed_parts(rows, rounded) | dead_parts(rows)
    faint = faint_parts(rows, rounded)
    lost = any(error == inf and beside.state[name].saved for name, error in spoilt(beside))
    return replace(
        found, parts=parts, faint=faint, state=dict(spoilt(beside)), next_error=inf if lost else 0.0
    )


def spoilt(beside: Beside) -> Iterator[tuple[str, float]]:
    """Yield tensors that are further off after the step than rounded weights explain, and how far."""
    for name, left in beside.state.items():
        if left.error > max(HARM_ERROR, MAGNIFIES * left.rounded):
            yield name, left.error


def _badness(outcome: Outcome) -> tuple[bool, bool, float]:
    return not outcome.finite, outcome.underflow > HARM_UNDERFLOW, outcome.worst
