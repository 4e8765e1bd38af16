"""How much of a watched script was seen."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import fsum, inf, isfinite, sqrt

from ampcheck.diagnose.gaps import grouped, of_trace
from ampcheck.observe.failure import CAUGHT
from ampcheck.observe.recorder import FORWARD_UNSEEN
from ampcheck.observe.reference.checks import READS
from ampcheck.observe.reference.fed_back import FED_BACK
from ampcheck.observe.reference.given import GIVEN
from ampcheck.observe.reference.picks import WORSE
from ampcheck.observe.reference.returned import USE
from ampcheck.observe.reference.shadow import TAKEN
from ampcheck.observe.script.data_sets import ROUNDED_DATA
from ampcheck.observe.script.gradient_rows import SEVERAL_SCALES, ZEROED
from ampcheck.observe.script.hand_watcher import LATER_BACKWARDS
from ampcheck.observe.script.recorded import Recorded
from ampcheck.observe.script.scaling.scaled_by_hand import ADDED, CLEARED
from ampcheck.observe.script.schedules import ROUNDED_METRIC
from ampcheck.observe.script.watched_thread import OTHER_THREADS
from ampcheck.observe.script.watcher import GRAPHS, Watcher
from ampcheck.observe.threads import THREADS
from ampcheck.run.script_outcomes import first_rounded, is_explained, outcome_of_step, passing, spoilt
from ampcheck.run.wishes import Wish
from ampcheck.values.doubts import DoubtKind
from ampcheck.values.formats import SHORT_DTYPE
from ampcheck.values.loop import GAVE_IN, Kind, Loop
from ampcheck.values.outcome import HARM_ERROR
from ampcheck.values.report import Report
from ampcheck.values.trace import BRANCH
from ampcheck.values.verdict import Coverage
from ampcheck.values.wording import clean, percent, plural, some

#: From here on what was rounded before a step may do harm in another one.
_NEAR = HARM_ERROR / 3
#: Shares of its first gradient and loss below which a model is trained: it moves no more.
_SETTLED_NORM, _SETTLED_LOSS = 1e-2, 1e-3


def script_coverage(
    watcher: Watcher, report: Report, judged: Sequence[Recorded], wish: Wish | None, *, stood_in: bool
) -> Coverage:
    """Return how much of a script was seen, given the steps that its report judges and what it asks for."""
    found = of_trace(report)
    loop = report.loop
    assert loop is not None
    full = [one for one in watcher.tape.recorded if one.precision == "fp32"]  # what it trains is as in FP32
    besides = [step.beside for step in (*judged, *full) if step.beside is not None]
    compared = {key for beside in besides for key in beside.compared | beside.given}
    if len(watcher.trained):
        stepped = watcher.trained.elements()
        unseen = watcher.trained.elements(others_than=compared)
        found = replace(
            found, parameters=len(stepped), elements=sum(stepped.values()), unseen=grouped(unseen, stepped)
        )
    asked, by = _switched_off(loop) if report.precision == "fp32" else ("", "")
    if not asked and wish is not None and report.precision not in wish.precisions:
        asked, by = wish.words, wish.place
    return replace(
        found,
        backwards=watcher.backwards,
        state=max((step.beside.held for step in judged if step.beside is not None), default=0),
        judged=sum(step.beside is not None for step in judged),
        raised=type(watcher.error).__name__ if isinstance(watcher.error, Exception) else "",
        gaps=(
            *found.gaps,
            *_ill(judged),
            *_missed(report),
            *_untried(watcher),
            *_ruined(watcher),
            *_spoilt_numbers(watcher),
            *_never_finite(report),
            *_beside(watcher),
            *_learned(watcher),
            *_passing(judged),
        ),
        asked=asked,
        asked_by=by,
        stood_in=stood_in and report.precision != "fp32",
    )


def _ill(judged: Sequence[Recorded]) -> Iterator[str]:
    """Yield that FP32 went wrong as well, so that nothing says what low precision did there."""
    full = [(step, step.beside) for step in judged if step.beside is not None]
    ill = [one for one, run in full if not isfinite(one.losses[1]) or run.reference.steps[0].nonfinite]
    if ill:
        yield f"FP32 has no finite loss or gradient either in {len(ill)} of the {plural(len(full), 'step')} compared"


def _missed(report: Report) -> Iterator[str]:
    """Yield what was not seen of a step, or not understood."""
    if report.loop is not None and report.loop.scaling:
        yield f"the loss scale is unknown: {report.loop.scaling}"
    yield from (clean(what) for what in report.low.not_audited if what.startswith(GAVE_IN))
    for what in (FORWARD_UNSEEN, THREADS, GRAPHS, OTHER_THREADS, LATER_BACKWARDS, CLEARED):
        if what in report.low.not_audited:
            yield f"{report.low.not_audited[what]} {what}"
    known = {(doubt.kind, doubt.harms) for doubt in report.doubts}
    ends = [FED_BACK, CAUGHT, BRANCH, TAKEN, ZEROED, SEVERAL_SCALES, ROUNDED_METRIC]
    if (DoubtKind.GIVEN, True) not in known:
        ends += [ROUNDED_DATA, GIVEN]
        for one in report.doubts:
            if one.kind is DoubtKind.GIVEN and _NEAR < one.error <= HARM_ERROR:
                moves = f"rounding {some(one.names, 1)} before the step moves the gradient by {percent(one.error)}"
                yield f"{moves}: by how much in other steps was not seen"
                break
    if not known & {(DoubtKind.PICKED, True), (DoubtKind.PICKED, False)}:
        ends.append(WORSE)
    yield from (
        clean(w)
        for w in report.low.not_audited
        if w.endswith(tuple(ends)) or w.startswith((ADDED, USE, READS))
    )


def _untried(watcher: Watcher) -> Iterator[str]:
    """Yield the optimizers whose updates of half-precision weights nothing was compared with."""
    for kind in sorted(set(watcher.updates.untried.values()) - watcher.averages.judged):
        yield f"the updates of half-precision weights by {kind} were not compared with FP32's"


def _ruined(watcher: Watcher) -> Iterator[str]:
    """Yield what is not finite at the end, whichever step made it so."""
    names = watcher.tape.left_behind.ruined
    if names:
        kind = "are" if len(names) > 1 else "is"
        yield f"{some(names, 1)} {kind} not finite at the end: the step that made it so was not recorded"


def _never_finite(report: Report) -> Iterator[str]:
    """Yield gradients that the script computes to its end, and that no step follows."""
    for _, event in report.loop.sequence(1) if report.loop is not None else ():
        if event.kind is Kind.NEVER_FINITE:
            times = event.name.partition(" ")[0]
            yield f"the last {times} backwards gave no finite gradients: why was not judged"


def _spoilt_numbers(watcher: Watcher) -> Iterator[str]:
    """Yield the script's own numbers that are NaN since a step was skipped."""
    names = list(watcher.scales.spoilt.found)
    if names:
        kind = "are" if len(names) > 1 else "is"
        yield f"{some(names)} {kind} NaN since a step was skipped: what the script does with that was not seen"


def _beside(watcher: Watcher) -> Iterator[str]:
    """Yield what changes in half precision outside of training."""
    workers = watcher.tape.workers
    for missed in filter(None, (workers.missed, workers.preparation.missed)):
        yield f"{missed}: whether training reads them was not seen"
    yield from workers.evaluation.missed
    if names := watcher.updates.still:
        kind = "do" if len(names) > 1 else "does"
        yield f"{some(names)} {kind} not move in half precision: whether FP32 would move on was not judged"
    if names := watcher.updates.unjudged:
        rounds = "training begins again and again with numbers of half precision"
        yield f"{rounds} in {some(names)}: whether that keeps what was trained was not judged"
    if still := [name for name, loss in watcher.tape.looks.carried.still.items() if loss is None]:
        kind = "stand" if len(still) > 1 else "stands"
        yield f"{some(still)} {kind} still where FP32 moves on from step to step: how much that comes to was not judged"
    if grown := watcher.tape.looks.carried.outgrown():
        kind = "have grown since they were" if len(grown) > 1 else "has grown since it was"
        yield f"{some(grown)} {kind} compared: whether half precision still keeps the changes was not judged"
    for dtype, (number, elements) in sorted(watcher.averages.found.items()):
        what = f"{plural(number, f'{dtype} tensor')} of {plural(elements, 'element')}"
        yield (
            f"{what} changed beside training, as an average of weights does: whether half precision keeps that was not "
            "judged"
        )


def settled(recorded: Sequence[Recorded]) -> list[Recorded]:
    """Return the steps in which FP32 has next to nothing left to learn, compared with the first of the same parameters.

    Those that overflow or spoil a state are none of them: that lasts. Nor are those that go on from gradients which are
    off: the loss may be small for that.
    """
    low = [step for step in recorded if step.precision != "fp32"] or recorded
    found = [(step, step.beside) for step in low if step.beside is not None and not step.overflowed]
    left = [
        (sqrt(fsum(row[1] for row in beside.rows.values())), abs(step.losses[1])) for step, beside in found
    ]
    first: dict[str, tuple[float, float]] = {}  #: by parameter
    for (_, beside), one in zip(found, left, strict=True):
        for name in beside.rows:
            first.setdefault(name, one)
    return [
        step
        for (step, beside), (norm, loss) in zip(found, left, strict=True)
        if norm > 0 and not beside.updates and not any(spoilt(beside))
        if not any(text.startswith(USE) for text in step.low.not_audited)
        if all(
            norm <= _SETTLED_NORM * first[name][0] and loss <= _SETTLED_LOSS * first[name][1]
            for name in beside.rows
        )
    ]


def _learned(watcher: Watcher) -> Iterator[str]:
    """Yield how far the gradients of a trained model are off: as a rule that is of no account."""
    tried = first_rounded(watcher.tape.recorded)
    found = [
        (step, outcome_of_step(step.beside, step, tried))
        for step in settled(watcher.tape.recorded)
        if step.beside
    ]
    off = [
        (outcome.worst, step.step)
        for step, outcome in found
        if outcome.harmed and not is_explained(outcome, step.beside, tried)
    ]
    if off:
        error, step = max(off)
        yield (
            f"the gradient of step {step} is {percent(error)} off, in a model whose loss has fallen below "
            f"{percent(_SETTLED_LOSS)} of its first: whether that matters was not judged"
        )


def _passing(judged: Sequence[Recorded]) -> Iterator[str]:
    """Yield how far off a step is that is no harm because of those after it."""
    if off := passing(judged):
        error, step = max(off)
        yield (
            f"the gradient of step {step} is {percent(error)} off, and those of the steps after it are not: whether "
            "that matters was not judged"
        )


def _switched_off(loop: Loop) -> tuple[str, str]:
    """Return the precision of a region of autocast that torch has switched off, and where that is asked for."""
    for _, event in loop.sequence(1):
        if event.kind is Kind.AUTOCAST and event.dtype:
            return SHORT_DTYPE.get(event.dtype, event.dtype), f"autocast at {event.location}"
    return "", ""


def _left(judged: Sequence[Recorded]) -> Iterator[str]:
    """Yield what a step leaves behind that is far off, and whose effect nobody knows."""
    found = {
        name: error
        for step in judged
        if step.beside is not None
        for name, error in spoilt(step.beside)
        if error < inf or not step.beside.state[name].saved
    }
    if found:
        name = max(found, key=lambda key: found[key])
        what = "is not finite" if found[name] == inf else f"is off by {percent(found[name])}"
        more = f" (and {plural(len(found) - 1, 'more tensor')})" if len(found) > 1 else ""
        yield f"{clean(name)}{more} {what} after the step: ampcheck did not test whether that does harm"


def most_missed(recorded: Sequence[Recorded]) -> dict[str, int]:
    """Return what was not audited in a step, and how many at most: the same modules are missed in each."""
    found: dict[str, int] = {}
    for step in recorded:
        for text, number in step.low.not_audited.items():
            found[text] = max(number, found.get(text, 0))
    return found
