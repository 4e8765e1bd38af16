"""The rows of a bench as text and numbers: what every format shows, worked out once."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

from ampcheck.bench.confirmed import confirmation
from ampcheck.bench.gpu_time import ms, named, rates
from ampcheck.bench.intervals import FEWEST_ROUNDS
from ampcheck.bench.result import BASE, PRECISIONS, Bench, Case, Closeness, Memory, Row
from ampcheck.bench.roofline import TERA, named_by
from ampcheck.bench.verdicts import judgement, said, speed, verdict
from ampcheck.renderers.drawing import NONE
from ampcheck.values.wording import clean, percent, scale_words

MIB = 1024 * 1024
_PEAK = (
    "CUDA peak: predicted from the step's operations under CUDA's casting rules, on tensors without storage; "
    "workspaces of cuBLAS and cuDNN and fragmentation are not in it; "
)


#: One precision as it is shown: a text for each of the columns.
Line: TypeAlias = Mapping[str, str]
#: Columns about time; on a CPU they say nothing about a GPU, and stand last.
TIMES = ("step", "speedup")
#: Precisions that may have a loss scale.
SCALED = ("amp", "plan")
COLUMNS = {
    "precision": "precision",
    "verdict": "verdict",
    "step": "step, ms (IQR)",
    "speedup": "× as fast [95 %]",
    "memory": "CUDA peak, MiB",
    "share": "× memory",
    "host": "CPU peak, MiB",
    "error": "gradient error",
    "training": "trained",
    "scale": "loss scale",
    "skipped": "skips: settling, timed, training",
    "fits": "largest batch",
}


def lines(bench: Bench, case: Case) -> tuple[Line, ...]:
    """Return the rows of a case as text."""
    return tuple(_line(bench, case, row) for row in case.rows)


def columns(bench: Bench, shown: Sequence[Line]) -> list[str]:
    """Return the columns that say anything; the times of a CPU come last."""
    always = {"precision", "verdict"}
    said = [name for name in COLUMNS if name in always or any(line[name] != NONE for line in shown)]
    return said if bench.cuda else sorted(said, key=lambda name: name in TIMES)


def where(bench: Bench) -> str:
    """Return what the times were measured on."""
    return bench.environment.get("device", "CPU") if bench.cuda else "this CPU"


def headings(bench: Bench) -> dict[str, str]:
    """Return what each column is called, and where its numbers come from."""
    kind = "measured" if bench.cuda else "predicted"
    rules = "" if bench.cuda else ", emulated"
    return COLUMNS | {
        "step": f"step on {where(bench)}, ms (IQR)",
        "speedup": f"× as fast on {where(bench)} [95 %]",
        "memory": f"CUDA peak, {kind}, MiB",
        "error": f"gradient error{rules}",
        "training": f"{measure_of(bench)}{rules}",
    }


def measure_of(bench: Bench) -> str:
    """Return what training was judged by."""
    found = {j.measure for case in bench.cases for row in case.rows if (j := judgement(bench, case, row))}
    labels = " (random labels)" if bench.random_labels else ""
    return " or ".join(sorted(found)) + labels if found else "trained"


def _line(bench: Bench, case: Case, row: Row) -> Line:
    time, memory, fast = row.time, row.memory, speed(case, row)
    ratio = case.memory_ratio(row)
    found = judgement(bench, case, row)
    return {
        "precision": row.precision,
        "verdict": verdict(bench, case, row),
        "step": NONE if time is None else f"{ms(time.median)} ({percent(time.spread)})",
        "speedup": "1" if row.precision == BASE and time else _interval(fast.interval) if fast else NONE,
        "memory": _peak(bench, memory),
        "share": NONE if ratio is None else f"{ratio:.2f}",
        "host": NONE if memory is None or memory.cpu_peak is None else f"{memory.cpu_peak / MIB:.4g}",
        "error": _error(row.one_step.gradients if row.one_step else None),
        "training": NONE if found is None else said(found),
        "scale": _scale(row),
        "skipped": _skips(row),
        "fits": NONE if row.largest_batch is None else f"{row.largest_batch:,}",
    }


def _peak(bench: Bench, memory: Memory | None) -> str:
    """Return the peak on CUDA; one that is predicted beside measured ones says so."""
    if memory is None or memory.cuda_bytes is None:
        return NONE
    beside = bench.cuda and memory.cuda_allocated is None
    return f"{memory.cuda_bytes / MIB:.4g}{' (predicted)' * beside}"


def _interval(value: Any) -> str:
    return f"{value.estimate:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _error(found: Closeness | None) -> str:
    if found is None:
        return NONE
    return percent(found.relative_rms) if found.finite else "not finite"


def _scale(row: Row) -> str:
    scale = row.scale or (row.courses[-1].scale if row.courses and row.precision in SCALED else None)
    return scale_words(scale) if scale else NONE


def _skips(row: Row) -> str:
    if row.precision not in SCALED or not (row.courses or row.time):
        return NONE
    trained = sum(course.skipped for course in row.courses)
    timed = row.time.skipped if row.time else 0
    settling = row.settling if row.time else max(course.settling for course in row.courses)
    return f"{settling}, {timed}, {trained}"


def caveats(bench: Bench, case: Case) -> tuple[str, ...]:
    """Return what has to be known beside the table, in sentences."""
    found = [text for row in case.rows for text in _certainty(bench, case, row)]
    if case.floor is not None:
        found.append(
            f"FP32 measured a second time: {_interval(case.floor)}; a difference is called one where it is seen "
            "beside both"
        )
    if case.compiled:
        found.append("the compiler is timed; memory is predicted, and accuracy taken, without it")
    found += [clean(note) for note in case.notes]
    for row in case.rows:
        if row.message:
            found.append(f"{row.precision}: {clean(row.message)}")
        for course in row.courses:
            if course.message:
                found.append(f"{row.precision}, seed {course.seed}: {clean(course.message)}")
        if row.time is not None and row.time.device_samples:
            device = ms(median(row.time.device_samples))
            found.append(f"{row.precision}: {device} ms a step on the device itself, between events")
        found += [f"{row.precision}: {text}" for text in _measured(row.memory or Memory())]
    notes = {row.memory.note for row in case.rows if row.memory is not None and row.memory.note}
    found += sorted(f"memory: {clean(note)}" for note in notes)
    return tuple(dict.fromkeys(found))


def _certainty(bench: Bench, case: Case, row: Row) -> Iterator[str]:
    """Yield how sure a row's figures are: what its runs could have shown, how often it was timed."""
    judged = judgement(bench, case, row)
    if judged is not None and judged.word in {"equivalent", "undecided"}:
        yield from [f"{row.precision}: {judged.measure}: {judged.statement}"] if judged.statement else []
    if row.time is not None and len(row.time.samples) < FEWEST_ROUNDS:
        yield f"{row.precision}: timed in {len(row.time.samples)} rounds only; a larger --budget gives it more"


def _measured(memory: Memory) -> Iterator[str]:
    """Yield what a GPU's allocator said, and how far the prediction is from it."""
    used, reserved = memory.cuda_allocated, memory.cuda_reserved
    if used is not None and reserved is not None:
        yield f"{used / MIB:.4g} MiB allocated at the peak on the GPU, {reserved / MIB:.4g} MiB reserved"
    if used and memory.predicted is not None:
        off = memory.predicted.peak_bytes / used - 1
        yield f"{memory.predicted.peak_bytes / MIB:.4g} MiB were predicted, {off:+.1%} of what was allocated"
    if memory.cuda_retries:
        yield f"the allocator had to retry {memory.cuda_retries} times"


def legend(bench: Bench) -> tuple[str, ...]:
    """Return how the numbers were made."""
    names = dict.fromkeys(row.precision for case in bench.cases for row in case.rows)
    text = [f"{name}: {PRECISIONS[name]}" for name in names]
    if any(name in SCALED for name in names):
        text.append(
            "loss scales settle before anything is timed, and on a copy before a training run, which starts from there"
        )
    if bench.cuda:
        return tuple(text)
    return (
        *text,
        "time: this CPU under torch's own CPU autocast and kernels; it says nothing about a GPU",
        _PEAK + confirmation("memory"),
        "gradient error and training: CUDA's casting rules on CPU tensors, products of halves summed in FP32",
    )


def records(bench: Bench) -> list[dict[str, Any]]:
    """Return the rows as numbers, for CSV and DataFrames, with what is predicted on each GPU."""
    return [
        _record(bench, case, row) | _predicted(case, row, named(bench))
        for case in bench.cases
        for row in case.rows
    ]


def _predicted(case: Case, row: Row, gpus: Sequence[str]) -> dict[str, Any]:
    """Return seconds and the speed-up on each GPU, None where nothing is predicted."""
    found = {time.gpu: (time.seconds, (rates(case, row, time) or (None,))[0]) for time in row.gpu_times}
    columns = ("predicted_s", "predicted_speedup")
    return {
        f"{column} {name}": value
        for name in gpus
        for column, value in zip(columns, found.get(name, (None, None)), strict=True)
    }


def throughput(bench: Bench, case: Case, row: Row) -> dict[str, Any]:
    """Return what follows from the time of a step: work a second, and an epoch's time and price."""
    seconds = row.time.median if row.time else None
    rate = case.batch_size * case.ranks / seconds if seconds else None
    flops = row.flops / seconds if seconds and row.flops else None
    card = named_by(bench.environment["device"]) if bench.cuda else None
    epoch = bench.epoch / rate if bench.epoch and rate else None
    return {
        "samples_per_s": rate,
        "tokens_per_s": case.tokens * case.ranks / seconds if seconds and case.tokens else None,
        **_taken(row.time, joules_per_step="joules", watts="watts"),
        "tflops_per_s": flops / TERA if flops else None,
        "mfu": flops / card.peak(row.precision) if flops and card else None,
        "epoch_s": epoch,
        "epoch_price": epoch / 3600 * bench.price if epoch and bench.price and bench.cuda else None,
    }


def _taken(thing: object, **names: str) -> dict[str, Any]:
    """Return what a thing holds, under names of a record; None where there is no thing."""
    return {name: None if thing is None else getattr(thing, held) for name, held in names.items()}


def _record(bench: Bench, case: Case, row: Row) -> dict[str, Any]:
    fast, found, memory, one = speed(case, row), judgement(bench, case, row), row.memory, row.one_step
    return {
        "target": bench.target,
        "case": case.key,
        "precision": row.precision,
        "status": row.status,
        "device": bench.environment.get("device", ""),
        **_taken(row.time, median_s="median", iqr_share="spread"),
        **throughput(bench, case, row),
        **_taken(fast and fast.interval, speedup="estimate", speedup_low="low", speedup_high="high"),
        **_taken(fast, speed="word"),
        **_taken(memory, cuda_bytes="cuda_bytes"),
        **_taken(memory and memory.predicted, cuda_predicted_bytes="peak_bytes"),
        **_taken(memory, cuda_allocated_bytes="cuda_allocated", cuda_reserved_bytes="cuda_reserved"),
        **_taken(memory, cpu_peak_bytes="cpu_peak"),
        "memory_ratio": case.memory_ratio(row),
        **_taken(one, loss_error="loss_error"),
        **_taken(
            one and one.gradients,
            gradient_error="relative_rms",
            gradient_cosine="cosine",
            gradient_bias="bias",
        ),
        **_taken(one and one.outputs, output_error="relative_rms"),
        **_taken(found, trained="word", measure="measure", trained_mean="own", margin="margin"),
        **_taken(found, seeds="seeds", power="power", seeds_needed="needed"),
        "scale": row.scale,
        "settling_skips": row.settling,
        **_taken(row.time, timed_skips="skipped"),
        "largest_batch": row.largest_batch,
        "verdict": verdict(bench, case, row),
    }
