"""Predicted times of a row on named GPUs, and what is said of them; never mixed with what was measured."""

from collections.abc import Mapping, Sequence

from ampcheck.bench.confirmed import confirmation
from ampcheck.bench.ledger import Operation
from ampcheck.bench.result import BASE, Bench, Case, GpuTime, Row
from ampcheck.bench.roofline import calibration, constants, gpu, named_by, step_time
from ampcheck.renderers.drawing import NONE
from ampcheck.values.wording import percent

#: The range of a predicted speed-up holds this share of the published ones, of models that were not fitted.
RANGE = 0.9
TITLES = (
    "GPU", "precision", "ms a step", "× FP32 [range]", "samples/s", "MFU", "forward, backward, update ms",
    "bound by", "compiled, ms", "fits",
)  # fmt: skip


def gpu_time(
    name: str, work: Sequence[Operation], precision: str, gradients: int, peak: int, *, graphed: bool = False
) -> GpuTime:
    """Return what a step of these operations would take on a GPU.

    With `graphed` forward and backward are a CUDA graph: the host launches the update's kernels only.
    """
    card, known = gpu(name), constants()
    tf32, scaled = precision == "tf32", gradients if precision in {"amp", "plan"} else 0
    eager, fused = (
        step_time(work, card, known, tf32=tf32, gradients=scaled, fused=fused) for fused in (False, True)
    )
    if graphed:
        eager, fused = eager.graphed(), fused.graphed()
    phases = tuple(eager.phases.get(phase, 0.0) for phase in ("forward", "backward", "update"))
    return GpuTime(
        name, eager.seconds, phases, eager.bound, fused.seconds, peak <= card.memory,
        tuple(name for name, _ in eager.heaviest),
    )  # fmt: skip


def runs_on(name: str, work: Sequence[Operation]) -> bool:
    """Tell whether a GPU has units for these operations; bf16 without them is emulated, at a cost nobody publishes."""
    return gpu(name).bf16 or not any(op.dtype == "bfloat16" for op in work)


def rates(case: Case, row: Row, found: GpuTime) -> tuple[float, float, float] | None:
    """Return the predicted speed-up over FP32 on the same GPU, with the range of it."""
    base = case.row(BASE)
    there = next((time for time in base.gpu_times if time.gpu == found.gpu), None) if base else None
    if there is None or row.precision == BASE or not found.seconds:
        return None
    return speed_up(there, found, case.mode)


def speed_up(base: GpuTime, low: GpuTime, mode: str) -> tuple[float, float, float]:
    """Return how many times as fast low precision is predicted to be, with the range of it."""
    ranges = calibration()["ranges"]
    assert isinstance(ranges, Mapping)
    factor, (least, most) = base.seconds / low.seconds, ranges[mode]
    return factor, factor * least, factor * most


def named(bench: Bench) -> tuple[str, ...]:
    """Return the GPUs that times are predicted on."""
    return tuple(
        dict.fromkeys(time.gpu for case in bench.cases for row in case.rows for time in row.gpu_times)
    )


def cells(case: Case, row: Row, name: str) -> tuple[str, str]:
    """Return ms a step and the speed-up on a GPU, with its range."""
    time = next((time for time in row.gpu_times if time.gpu == name), None)
    if time is None:
        return NONE, NONE
    found = rates(case, row, time)
    return ms(time.seconds), "1" if found is None else "{:.2f} [{:.2f}, {:.2f}]".format(*found)


def titles(bench: Bench) -> tuple[str, ...]:
    """Return the columns of the table."""
    hour = ("cost of an epoch",) if bench.price is not None and bench.epoch else ()
    measured = ("measured here, ms",) if _here(bench) else ()
    return TITLES + measured + (("epoch, min", *hour) if bench.epoch else ())


def _here(bench: Bench) -> str:
    """Return the name of the GPU that the bench was measured on, where times were predicted for it."""
    card = named_by(bench.environment["device"]) if bench.cuda else None
    return card.name if card is not None and card.name in named(bench) else ""


def table(bench: Bench, case: Case) -> list[tuple[str, ...]]:
    """Return a line for each GPU and precision."""
    order = dict.fromkeys(time.gpu for row in case.rows for time in row.gpu_times)
    return [
        (*_line(case, row, time), *_beside(bench, row, time), *_epoch(bench, case, time))
        for name in order
        for row in case.rows
        for time in row.gpu_times
        if time.gpu == name
    ]


def _line(case: Case, row: Row, time: GpuTime) -> tuple[str, ...]:
    return (
        time.gpu, row.precision, *cells(case, row, time.gpu),
        f"{case.batch_size / time.seconds:,.0f}", _share(row, time),
        ", ".join(map(ms, time.phases)),
        time.bound, ms(time.compiled), "yes" if time.fits else "no",
    )  # fmt: skip


def _beside(bench: Bench, row: Row, time: GpuTime) -> tuple[str, ...]:
    """Return what was measured on the GPU that a time is predicted for."""
    here = _here(bench)
    if not here:
        return ()
    return (ms(row.time.median) if row.time is not None and time.gpu == here else NONE,)


def _epoch(bench: Bench, case: Case, time: GpuTime) -> tuple[str, ...]:
    if not bench.epoch:
        return ()
    hours = bench.epoch / case.batch_size * time.seconds / 3600
    return (f"{60 * hours:,.3g}", *(() if bench.price is None else (f"{bench.price * hours:,.3g}",)))


def legend(bench: Bench) -> tuple[str, ...]:
    """Return how predicted times were made, and how far off they were on published tables; nothing without any."""
    if not any(row.gpu_times for case in bench.cases for row in case.rows):
        return ()
    scores = calibration()["scores"]
    assert isinstance(scores, Mapping)
    family = scores["leave one family out"]
    how = (
        "times on GPUs are predicted, not measured: a roofline over the step's operations with published peaks; "
        f"on {scores['rows']} published speed-ups the median error is {percent(scores['leave one GPU out']['median'])} "
        f"for a GPU and {percent(family['median'])} for a model family that was not fitted "
        f"(90th percentile {percent(family['p90'])}); data loading is not in it"
    )
    sure = (
        f"the range of a predicted speed-up held {percent(family['covered'])} of the published ones; the compiled "
        f"column is not checked against published figures; {confirmation('time')}"
    )
    return how, sure


def _share(row: Row, time: GpuTime) -> str:
    """Return the model's FLOPs as a share of what the GPU could compute meanwhile."""
    return percent(row.flops / time.seconds / gpu(time.gpu).peak(row.precision)) if row.flops else NONE


def ms(seconds: float) -> str:
    """Return seconds as milliseconds."""
    return f"{seconds * 1000:.3g}" if seconds < 1 else f"{seconds * 1000:,.0f}"
