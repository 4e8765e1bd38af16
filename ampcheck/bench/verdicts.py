"""What rows say, judged: speed under a noise floor, accuracy by a test of equivalence, one word for all."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from ampcheck.bench.intervals import Interval, equivalence
from ampcheck.bench.result import BASE, Bench, Case, Course, Row

#: A spread of the samples, IQR over median, from which times are called noisy; torch.utils.benchmark warns there.
NOISY = 0.25
#: A peak this close to FP32's is the same: allocators round.
SAME_MEMORY = 0.02
#: A run that gains less than this share of what FP32 gains does not train.
TRAINS_SHARE = 0.1
#: Courses that ended in nothing that could be compared.
FAILED = {
    "diverged": "the loss is no number",
    "skipped": "every update is skipped",
    "raised": "the step raises",
}
_TWO = 2
_AGAINST = {"stuck": "training fails: the loss stays", "worse": "trains worse"}


@dataclass(frozen=True, slots=True)
class Speed:
    """How a precision's time compares with FP32's."""

    word: str  #: faster, slower, no difference measured
    interval: Interval
    noisy: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether training in a precision comes to what FP32 comes to, over paired seeds."""

    word: str  #: equivalent, better, worse, undecided, stuck, fails, reference
    measure: str  #: what was compared, each read in FP32: metric, validation loss or training loss
    own: float  #: mean over the seeds
    reference: float
    difference: Interval  #: mean over seeds; positive is worse
    margin: float
    seeds: int
    failed: int = 0
    how: str = ""  #: the runs that failed ended, most of them


def speed(case: Case, row: Row) -> Speed | None:
    """Return how fast a row is; within what FP32 measured twice differs by, nothing is said to differ."""
    interval = case.speedup(row)
    if interval is None or row.time is None:
        return None
    floor = case.floor or Interval(1.0, 1.0, 1.0)
    word = "no difference measured"
    if interval.low > max(1.0, floor.high):
        word = "faster"
    elif interval.high < min(1.0, floor.low):
        word = "slower"
    return Speed(word, interval, row.time.spread > NOISY)


def judgement(bench: Bench, case: Case, row: Row) -> Judgement | None:
    """Return what the training runs of a row say beside those of FP32 with the same seeds."""
    base = case.row(BASE)
    if base is None or not row.courses or not base.courses:
        return None
    measure, sign = _measure(base.courses)
    ends = Counter(course.status for course in row.courses if course.status in FAILED)
    how = FAILED[ends.most_common(1)[0][0]] if ends else ""
    reference = {course.seed: _value(course, measure) for course in base.courses}
    own = [_value(course, measure) for course in row.courses]
    known = [value for value in reference.values() if math.isfinite(value)]
    if len(known) < len(reference):
        return None  # FP32 itself came to nothing
    spread = stdev(known) if len(known) >= _TWO else 0.0
    margin = max(bench.margin * abs(fmean(known)), spread)
    if ends or not all(map(math.isfinite, own)):
        word, interval = "fails", Interval(math.nan, math.nan, math.nan)
    elif row is base:
        word, interval = "reference", Interval(0.0, 0.0, 0.0)
    else:
        word, interval = equivalence(
            [sign * (value - reference[course.seed]) for value, course in zip(own, row.courses, strict=True)],
            margin,
        )
        if word == "worse" and _gained(row.courses) < TRAINS_SHARE * _gained(base.courses):
            word = "stuck"
    mean = fmean(value for value in own if math.isfinite(value)) if any(map(math.isfinite, own)) else math.nan
    return Judgement(word, measure, mean, fmean(known), interval, margin, len(own), ends.total(), how)


def _gained(courses: Sequence[Course]) -> float:
    """Return by how much the training loss came down, over all seeds."""
    return fmean(course.losses[0] - course.final_loss for course in courses)


def _measure(courses: Sequence[Course]) -> tuple[str, int]:
    """Return what to compare, and the sign that makes more of it worse."""
    if courses[0].metric is not None:
        return "metric", -1
    return ("validation loss" if courses[0].validation_loss is not None else "training loss"), 1


def _value(course: Course, measure: str) -> float:
    value = {
        "metric": course.metric,
        "validation loss": course.validation_loss,
        "training loss": course.final_loss if course.full_loss is None else course.full_loss,
    }[measure]
    return math.nan if value is None or course.status in FAILED else value


def _trained(found: Judgement) -> str:
    if found.word == "undecided":
        return "accuracy undecided (n too small)"
    return f"equivalent within ±{found.margin:.2g}" if found.word == "equivalent" else f"trains {found.word}"


def said(found: Judgement) -> str:
    """Return a judgement in words."""
    if found.word == "reference":
        return f"{found.own:.4g}"
    if found.word == "fails":
        return f"fails: {found.failed or found.seeds} of {found.seeds} runs"
    return f"{found.own:.4g} ({found.word})"


def verdict(bench: Bench, case: Case, row: Row) -> str:
    """Return a row in one phrase: what stands against it, else what it buys."""
    if row.precision == BASE:
        return "the reference"
    if row.status != "ok":
        return {"oom": "out of memory", "overflow": "no loss scale fits"}.get(row.status, "does not run")
    found = judgement(bench, case, row)
    if found is not None and found.word == "fails":
        return f"training fails: {found.how or FAILED['diverged']}"
    if found is not None and found.word in _AGAINST:
        return _AGAINST[found.word]
    if row.one_step is not None and not row.one_step.gradients.finite:
        return "gradients are not finite"
    words = _bought(case, row, "" if bench.cuda else " on this CPU")
    if found is not None:
        words.append(_trained(found))
    return ", ".join(words) or "nothing measured"


def _bought(case: Case, row: Row, where: str) -> list[str]:
    words: list[str] = []
    fast = speed(case, row)
    if fast is not None:
        share = f"{fast.interval.estimate:.2f}× as fast"
        said_of_time = f"{share}{' (noisy)' * fast.noisy}" if fast.word in {"faster", "slower"} else fast.word
        words.append(said_of_time + where)
    if row.time is not None and row.time.skipped:
        words.append(f"{row.time.skipped} timed updates were skipped: not comparable")
    memory = case.memory_ratio(row)
    if memory is not None:
        words.append("same memory" if abs(memory - 1) <= SAME_MEMORY else f"{memory:.2f}× memory")
    return words
