"""What rows say, judged: speed beside FP32 timed twice, accuracy by a test of equivalence, one word for all."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from ampcheck.bench.intervals import Interval, enough, equivalence, power
from ampcheck.bench.result import BASE, Bench, Case, Closeness, Row, TrainingCurve
from ampcheck.values.wording import percent

#: A spread of the samples, IQR over median, from which times are called noisy; torch.utils.benchmark warns there.
NOISY = 0.25
#: A peak this close to FP32's is the same: allocators round.
SAME_MEMORY = 0.02
#: A run that gains less than this share of what FP32 gains does not train.
TRAINS_SHARE = 0.1
#: Courses that ended in nothing that could be compared.
FAILED = {
    "diverged": "the loss is not finite",
    "skipped": "every update is skipped",
    "raised": "the step raises",
}
#: A relative error of the gradients from which they are called lost: less than half of them arrives.
LOST = 0.5
#: What is said of training on labels that were made up: it can only memorise noise.
NOT_JUDGED = "not judged"
_ACCURACY = ("equivalent", "better", "worse", "undecided")
_TWO = 2


@dataclass(frozen=True, slots=True)
class Speed:
    """How a precision's time compares with FP32's."""

    word: str  #: faster, slower, no difference measured
    interval: Interval
    noisy: bool
    seen_from: float  #: the difference that these rounds show in four of five times
    rounds: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether training in a precision comes to what FP32 comes to, over paired seeds."""

    word: str  #: equivalent, better, worse, undecided, not judged, stuck, fails, reference
    measure: str  #: what was compared, each read in FP32: metric, validation loss or training loss
    own: float  #: mean over the seeds
    reference: float
    difference: Interval  #: mean over seeds; positive is worse
    margin: float
    seeds: int
    failed: int = 0
    how: str = ""  #: the runs that failed ended, most of them
    power: float | None = None  #: the probability that a difference of the margin would have been seen
    needed: int | None = None  #: seeds that would see it as often as is usual
    repeated: int = 0  #: runs that were identical to another one, and count once

    @property
    def statement(self) -> str:
        """Return what the runs could have shown, in a sentence; "" where that is not known."""
        again = f"{self.repeated} of the runs are identical to another one and count once; "
        runs = again * bool(self.repeated)
        share = percent(self.margin / abs(self.reference)) if self.reference else f"{self.margin:.2g}"
        if self.power is None:
            return f"{runs}one run shows no difference" if runs else ""
        sure = percent(self.power)
        text = f"{runs}a difference of {share} would have been seen with a probability of {sure}"
        if self.needed is not None and self.needed > self.seeds:
            text += f"; {self.needed} seeds would show it with a probability of 80 %"
        return text


def speed(case: Case, row: Row) -> Speed | None:
    """Return how fast a row is; it differs where it does so beside both of FP32's own timings."""
    interval = case.speedup(row)
    if interval is None or row.time is None:
        return None
    both = [interval] if case.again is None else [interval, row.time.speedup(case.again)]
    word = "no difference measured"
    if min(one.low for one in both) > 1:
        word = "faster"
    elif max(one.high for one in both) < 1:
        word = "slower"
    seen = max(one.seen_from for one in both)
    return Speed(word, interval, row.time.spread > NOISY, seen, len(row.time.samples))


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
    margin = bench.margin * abs(fmean(known))
    pairs = {(course.seed): value for course, value in zip(row.courses, own, strict=True)}
    distinct = _distinct(base.courses, row.courses)
    differences = [sign * (pairs[seed] - reference[seed]) for seed in distinct]
    seen = needed = None
    if ends or not all(map(math.isfinite, own)):
        word, interval = "fails", Interval(math.nan, math.nan, math.nan)
    elif row is base:
        word, interval = "reference", Interval(0.0, 0.0, 0.0)
    else:
        word, interval = equivalence(differences, margin)
        if _gained(row.courses) < TRAINS_SHARE * _gained(base.courses) and interval.estimate > margin:
            word = "stuck"
        if len(differences) >= _TWO and margin:
            spread = stdev(differences)
            seen, needed = power(spread, len(differences), margin), enough(spread, margin)
    if bench.random_labels and word in _ACCURACY:
        word = NOT_JUDGED
    finite = [value for value in own if math.isfinite(value)]
    mean = fmean(finite) if finite else math.nan
    return Judgement(
        word, measure, mean, fmean(known), interval, margin, len(distinct) if not ends else len(own),
        ends.total(), how, seen, needed, len(row.courses) - len(distinct),
    )  # fmt: skip


def _distinct(base: Sequence[TrainingCurve], row: Sequence[TrainingCurve]) -> list[int]:
    """Return the seeds whose pairs of runs differ from every one before; identical runs are one measurement."""
    plain = {course.seed: course for course in base}
    found: dict[str, int] = {}
    for course in row:
        if course.seed in plain:
            runs = [replace(run, seed=0, settling=0) for run in (plain[course.seed], course)]
            found.setdefault(repr(runs), course.seed)
    return list(found.values())


def _gained(courses: Sequence[TrainingCurve]) -> float:
    """Return by how much the training loss came down, over all seeds."""
    return fmean(course.losses[0] - course.final_loss for course in courses)


def _measure(courses: Sequence[TrainingCurve]) -> tuple[str, int]:
    """Return what to compare, and the sign that makes more of it worse."""
    if courses[0].metric is not None:
        return "metric", -1
    return ("validation loss" if courses[0].validation_loss is not None else "training loss"), 1


def _value(course: TrainingCurve, measure: str) -> float:
    value = {
        "metric": course.metric,
        "validation loss": course.validation_loss,
        "training loss": course.final_loss if course.full_loss is None else course.full_loss,
    }[measure]
    return math.nan if value is None or course.status in FAILED else value


def _trained(found: Judgement) -> str:
    if found.word == "undecided":
        more = f", {found.needed} would do" if found.needed is not None and found.needed > found.seeds else ""
        return f"{found.measure} undecided (n = {found.seeds}{more})"
    within = f" within ±{found.margin:.2g}" if found.word == "equivalent" else ""
    return f"{found.measure} {found.word}{within}"


def said(found: Judgement) -> str:
    """Return a judgement in words."""
    if found.word in {"reference", NOT_JUDGED}:
        return f"{found.own:.4g}"
    if found.word == "fails":
        return f"fails: {found.failed or found.seeds} of {found.seeds} runs"
    return f"{found.own:.4g} ({found.word})"


def verdict(bench: Bench, case: Case, row: Row) -> str:
    """Return a row in one phrase: what stands against it, else what it buys."""
    if row.precision == BASE:
        return "the reference"
    stands = against(bench, case, row)
    if stands:
        return stands
    words = [_memory(case, row), _agreement(row), _accuracy(bench, case, row)]
    time = _time(case, row)
    words = [time, *words] if bench.cuda else [*words, time and f"on this CPU {time}"]
    return ", ".join(word for word in words if word) or "nothing measured"


def against(bench: Bench, case: Case, row: Row) -> str:
    """Return what stands against a row, whatever it buys; "" where nothing does."""
    if row.status != "ok":
        return {"oom": "out of memory", "overflow": "no loss scale fits"}.get(row.status, "does not run")
    found = judgement(bench, case, row)
    if found is not None and found.word in {"fails", "stuck"}:
        how = "the loss does not fall" if found.word == "stuck" else found.how or FAILED["diverged"]
        return f"training fails: {how}"
    lost = _lost(row)
    if lost or found is None or found.word != "worse":
        return lost
    return f"{found.measure} worse: {found.own:.4g}, FP32 {found.reference:.4g}"


def _lost(row: Row) -> str:
    """Return that a step's gradients, or in inference its outputs, are not there; "" where they are."""
    what, error = seen(row)
    if error is None:
        return ""
    if not error.finite:
        return f"{what}s are not finite"
    return f"{what}s are lost: error {percent(error.relative_rms)}" if error.relative_rms >= LOST else ""


def seen(row: Row) -> tuple[str, Closeness | None]:
    """Return what one step is judged by, and how far off that is."""
    step = row.one_step
    if step is None:
        return "", None
    return ("output", step.outputs) if step.gradients is None else ("gradient", step.gradients)


def _agreement(row: Row) -> str:
    what, error = seen(row)
    return "" if error is None else f"{what} error {percent(error.relative_rms)}"


def _accuracy(bench: Bench, case: Case, row: Row) -> str:
    found = judgement(bench, case, row)
    if found is None:
        return ""
    return "accuracy not judged (random labels)" if found.word == NOT_JUDGED else _trained(found)


def _memory(case: Case, row: Row) -> str:
    memory = case.memory_ratio(row)
    if memory is None:
        return ""
    return "same memory" if abs(memory - 1) <= SAME_MEMORY else f"{memory:.2f}× memory"


def _time(case: Case, row: Row) -> str:
    fast = speed(case, row)
    if fast is None:
        return ""
    share = f"{fast.interval.estimate:.2f}× as fast"
    if fast.word in {"faster", "slower"}:
        text = f"{share}{' (noisy)' * fast.noisy}"
    else:
        text = f"same speed within noise ({_shown(fast)})"
    skipped = row.time.skipped if row.time is not None else 0
    return text + (f" ({skipped} timed updates were skipped: not comparable)" if skipped else "")


def _shown(fast: Speed) -> str:
    """Return what the rounds of a measurement would have shown."""
    rounds = f"{fast.rounds} round{'s' * (fast.rounds != 1)}"
    if fast.seen_from >= 1:
        return f"{rounds} would not show twice the speed"
    return f"{percent(fast.seen_from)} would be seen in {rounds}"
