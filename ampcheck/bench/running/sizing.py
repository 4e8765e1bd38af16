"""The memory of every row: measured where it can be, predicted for CUDA, with the times that a GPU would take."""

from dataclasses import replace
from typing import Any

from ampcheck.bench.gpu_time import gpu_time, runs_on
from ampcheck.bench.result import Case, GpuTime, Memory, Row
from ampcheck.bench.running.about import device_of, has_tf32
from ampcheck.bench.running.arms import Arm
from ampcheck.bench.running.memory import cpu_peak, cuda_peak
from ampcheck.bench.running.one_case import OneCase
from ampcheck.bench.running.precisions import Precision
from ampcheck.bench.running.predict import Prediction, fitting_batch, predict
from ampcheck.bench.why import reasons
from ampcheck.observe.step import StepRaised


def sized(run: OneCase, case: Case, rows: dict[str, Row]) -> Case:
    """Predict the memory of every row; the operations of the first one in low precision give the reasons."""
    if case.ranks > 1:
        rows |= {name: replace(row, memory=measured(run, rows, name)) for name, row in rows.items()}
        return case
    found: dict[Any, Prediction | str] = {}
    fits: dict[Any, int | None] = {}
    for name in tuple(rows):
        chosen = run.precision(name)
        if chosen.recipe is not None:
            rows[name] = replace(rows[name], memory=Memory(note="emulated: not predicted"))
            continue
        key = (chosen.dtype, chosen.weights, chosen.plan.fp32_modules, chosen.plan.fp32_lines)
        if key not in found:
            run.say(f"predicting the memory of {name}")
            found[key], fits[key] = _predicted(run, chosen)
        memory = measured(run, rows, name)
        rows[name] = _with(run, rows[name], memory, found[key], fits[key])
    low = (
        shown for (dtype, *_), shown in found.items() if dtype is not None and isinstance(shown, Prediction)
    )
    first = next(low, None)
    return replace(case, reasons=reasons(first.operations if first else ()))


def _with(run: OneCase, row: Row, memory: Memory, found: Prediction | str, fits: int | None) -> Row:
    """Return a row with what was measured and predicted for it."""
    if isinstance(found, str):
        return replace(row, memory=replace(memory, note=found))
    note = "; ".join(text for text in (memory.note, found.note) if text)
    times, missing = _on_gpus(run, row.precision, found)
    return replace(
        row, memory=replace(memory, predicted=found.split, note=note), largest_batch=fits, gpu_times=times,
        flops=found.flops, message="; ".join(text for text in (row.message, missing) if text),
    )  # fmt: skip


def measured(run: OneCase, rows: dict[str, Row], name: str) -> Memory:
    """Measure the memory of one precision, alone: no other model is there meanwhile."""
    if not _is_measured(run, rows, name):
        return Memory()
    chosen = run.precision(name)
    run.say(f"measuring the memory of {name}")
    try:
        arm = run.arm(chosen)
        if chosen.tf32 and not has_tf32(arm.device):
            return Memory()
        with arm.running():
            arm.settle(1)
        return _used(arm)
    except StepRaised as raised:
        if raised.out_of_memory:
            rows[name] = replace(rows[name], status="oom", message=str(raised))
        return Memory(note=f"the peak of {name} is not measured: {raised}")


def _is_measured(run: OneCase, rows: dict[str, Row], name: str) -> bool:
    """Tell whether memory is measured: on a GPU, and on a CPU where steps are run for their time anyway."""
    timed = "time" in run.request.parts
    ran = rows[name].time is not None or not timed
    on_gpu = device_of(run.make()).type == "cuda"
    return run.begun.mode == "train" and rows[name].status == "ok" and ran and (on_gpu or timed)


def _used(arm: Arm) -> Memory:
    """Return the memory that a step really takes."""
    if arm.device.type == "cuda":
        allocated, reserved, retries = cuda_peak(arm)
        return Memory(None, allocated, reserved, retries)
    peak, note = cpu_peak(arm)
    return Memory(cpu_peak=peak, note=note)


def _on_gpus(run: OneCase, name: str, found: Prediction) -> tuple[tuple[GpuTime, ...], str]:
    """Return the predicted times on the GPUs that were asked for, or why there are none."""
    wanted, case = run.request.gpus, run.begun
    if wanted and found.recurrent:
        return (), "no time is predicted: a GPU runs recurrent layers as kernels that are not seen here"
    gradients = found.split.roles.get("parameters", 0) if case.mode == "train" else 0
    peak = found.split.peak_bytes
    known = [card for card in wanted if runs_on(card, found.work)]
    missing = ", ".join(card for card in wanted if card not in known)
    times = tuple(
        gpu_time(card, found.work, name, gradients, peak, graphed=case.cuda_graphs) for card in known
    )
    return times, f"no time is predicted on {missing}: it has no bf16 units" if missing else ""


def _predicted(run: OneCase, chosen: Precision) -> tuple[Prediction | str, int | None]:
    """Return a prediction, or why there is none, and the largest batch that fits where that is asked for."""
    train, room = run.begun.mode == "train", run.request.room
    try:
        found = predict(run.make, chosen, train=train)
    except StepRaised as raised:
        return f"not predicted: {raised}", None
    return found, fitting_batch(run.make, chosen, room) if train and room is not None else None
