"""How much of a watched script was seen."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ampcheck.diagnose.gaps import grouped, of_trace
from ampcheck.fix.verify import dead_parts, outcome_of
from ampcheck.observe.recorder import FORWARD_UNSEEN
from ampcheck.observe.script.recording import Recorded
from ampcheck.observe.script.watcher import Watcher
from ampcheck.observe.threads import THREADS
from ampcheck.run.wishes import Wish
from ampcheck.values.loop import Kind, Loop
from ampcheck.values.outcome import HARM_UNDERFLOW, Outcome
from ampcheck.values.report import Report
from ampcheck.values.verdict import Coverage
from ampcheck.values.wording import clean, plural

_SHORT = {"float16": "fp16", "bfloat16": "bf16"}


def script_coverage(
    watcher: Watcher, report: Report, judged: Sequence[Recorded], wish: Wish | None, *, stood_in: bool
) -> Coverage:
    """Return how much of a script was seen, given the steps that its report judges and what it asks for."""
    found = of_trace(report)
    loop = report.loop
    assert loop is not None
    compared = {key for step in judged if step.beside is not None for key in step.beside.compared}
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
        judged=sum(step.beside is not None for step in judged),
        raised=type(watcher.error).__name__ if isinstance(watcher.error, Exception) else "",
        gaps=(*found.gaps, *_missed(report), *_untried(watcher), *_ruined(watcher), *_beside(watcher)),
        asked=asked,
        asked_by=by,
        stood_in=stood_in and report.precision != "fp32",
    )


def _missed(report: Report) -> Iterator[str]:
    """Yield what was not seen of a step, or not understood."""
    if report.loop is not None and report.loop.scaling:
        yield f"the loss scale is unknown: {report.loop.scaling}"
    for what in (FORWARD_UNSEEN, THREADS):
        if what in report.low.not_audited:
            yield f"{report.low.not_audited[what]} {what}"


def _untried(watcher: Watcher) -> Iterator[str]:
    """Yield the optimizers whose updates of half-precision weights nothing was compared with."""
    for kind in sorted(set(watcher.updates.untried.values())):
        yield f"the updates of half-precision weights by {kind} were not compared with FP32's"


def _ruined(watcher: Watcher) -> Iterator[str]:
    """Yield what is not finite at the end, whichever step made it so."""
    names = watcher.tape.left_behind.ruined
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        kind = "are" if more else "is"
        yield f"{clean(names[0])}{more} {kind} not finite at the end: the step that made it so was not recorded"


def _beside(watcher: Watcher) -> Iterator[str]:
    """Yield what changes in half precision outside of training."""
    found = {} if watcher.averages is None else watcher.averages.found
    for dtype, (number, elements) in sorted(found.items()):
        what = f"{plural(number, f'{dtype} tensor')} of {plural(elements, 'element')}"
        yield (
            f"{what} changed beside training, as an average of weights does: whether half precision keeps that was not "
            "judged"
        )


def _switched_off(loop: Loop) -> tuple[str, str]:
    """Return the precision of a region of autocast that torch has switched off, and where that is asked for."""
    for _, event in loop.sequence(1):
        if event.kind is Kind.AUTOCAST and event.dtype:
            return _SHORT.get(event.dtype, event.dtype), f"autocast at {event.location}"
    return "", ""


def worst_outcome(judged: Sequence[Recorded]) -> Outcome | None:
    """Return the worst of what the steps came to that FP32 ran beside; None where it ran beside none."""
    outcomes = [_outcome(step.beside.rows, step) for step in judged if step.beside is not None]
    return max(outcomes, key=_badness, default=None)


def _outcome(rows: Mapping[str, Sequence[float]], step: Recorded) -> Outcome:
    found = outcome_of(rows, *step.losses, step.log2_scale)
    return replace(found, parts=dead_parts(rows)) if found.finite else found


def _badness(outcome: Outcome) -> tuple[bool, bool, float]:
    return not outcome.finite, outcome.underflow > HARM_UNDERFLOW, outcome.worst
