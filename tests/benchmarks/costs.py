"""What a recorded step costs: time, host synchronisations, memory, and the size of the report."""

import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile
from workloads import Workload

from ampcheck.observe.cuda_on_cpu.wide import WideCompute, execute
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.reference.pair import SAMPLES
from ampcheck.observe.step import casting_rules

#: Methods and operations that get numbers out of a tensor: on an accelerator each waits for it.
METHODS = frozenset({"item", "tolist", "cpu", "numpy"})
OPERATIONS = frozenset(f"aten::{name}" for name in ("_local_scalar_dense", "is_nonzero", "nonzero", "equal"))
MINIMUM_TURN = 0.1  #: seconds; shorter steps are run several times a turn, above the clock's resolution


class Quartiles(NamedTuple):
    """A ratio's median and quartiles."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}-{self.high:.2f}]"


@dataclass(frozen=True)
class Timing:
    """A recorded step against a bare one, and that one against itself."""

    bare: float  #: median seconds
    ratio: Quartiles
    audited: Quartiles  #: with samples of all results and the fetch, as an audit does it once
    control: Quartiles


def recorded(workload: Workload, **options: Any) -> Recorder:
    """Return the recorder of one step."""
    recorder = Recorder(workload.model, **options)
    with recorder:
        workload.step()
    return recorder


def timing(workload: Workload, rounds: int) -> Timing:
    """Compare recorded with bare steps, interleaved in random order in one process."""
    return _compare(workload.step, lambda **options: recorded(workload, **options), rounds, _clock(workload))


def emulated(workload: Workload, rounds: int) -> Timing:
    """The same for fp16 under CUDA's casting rules on the CPU; heavy operations run in float32 either way."""

    def inside(mode: AbstractContextManager[Any]) -> None:
        with casting_rules(torch.device("cpu"), torch.float16), mode, torch.autocast("cpu", torch.float16):
            workload.step()

    def record(**options: Any) -> Recorder:
        recorder = Recorder(workload.model, execute=execute, **options)
        inside(recorder)
        return recorder

    return _compare(lambda: inside(WideCompute()), record, rounds, time.process_time)


def _clock(workload: Workload) -> Callable[[], float]:
    """Return the clock: of the processor for one thread, else of the wall, once the device is done."""
    if next(workload.model.parameters()).device.type != "cuda":
        return time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def _compare(
    bare: Callable[[], object], record: Callable[..., Recorder], rounds: int, clock: Callable[[], float]
) -> Timing:
    record().fetch()
    begun = clock()
    bare()
    repeats = max(1, round(MINIMUM_TURN / max(clock() - begun, 1e-6)))
    arms: dict[str, Callable[[], object]] = {
        "bare": bare,
        "again": bare,
        "recorded": record,
        "audited": lambda: record(samples=SAMPLES).fetch(),
    }
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name in random.sample(list(arms), len(arms)):
            begun = clock()
            for _ in range(repeats):
                arms[name]()
            times[name].append((clock() - begun) / repeats)
    ratios = (_quartiles(times[name], times["bare"]) for name in ("recorded", "audited", "again"))
    return Timing(statistics.median(times["bare"]), *ratios)


def _quartiles(times: list[float], bare: list[float]) -> Quartiles:
    return Quartiles(*statistics.quantiles([a / b for a, b in zip(times, bare, strict=True)]))


def count_reads(run: Callable[[], object]) -> Counter[str]:
    """Count what reads numbers out of tensors during a run, wherever it is called from.

    The profiler sees `bool(tensor)` and the like, also inside a dispatch mode, where an outer mode does not.
    """
    found: Counter[str] = Counter()

    def called(_frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__name__", "") in METHODS:
            found[function.__name__] += isinstance(getattr(function, "__self__", None), torch.Tensor)

    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        sys.setprofile(called)
        try:
            run()
        finally:
            sys.setprofile(None)
    found.update(event.name for event in profiled.events() if event.name in OPERATIONS)
    return +found


def reads(workload: Workload) -> tuple[Counter[str], Counter[str]]:
    """Return the reads that recording adds inside a step, and those of fetching the record afterwards.

    After the one transfer, `cpu`, what else is read lies on the host already.
    """
    recorders: list[Recorder] = []
    bare = count_reads(workload.step)
    with _refusing_syncs(workload):
        inside = count_reads(lambda: recorders.append(recorded(workload, samples=SAMPLES)))
    after = count_reads(recorders[0].fetch)
    return inside - bare, after


def _refusing_syncs(workload: Workload) -> AbstractContextManager[Any]:
    """Let CUDA itself raise at a synchronisation, where there is CUDA."""
    if next(workload.model.parameters()).device.type != "cuda":
        return nullcontext()
    stack = ExitStack()
    torch.cuda.set_sync_debug_mode("error")
    stack.callback(torch.cuda.set_sync_debug_mode, "default")
    return stack


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the most tensor memory held during a run above that before, as the allocator reports it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def memory(workload: Workload) -> tuple[int, int]:
    """Return the peak of a bare step and of a recorded one with the fetch, in bytes."""

    def bare() -> None:
        workload.model.zero_grad()
        workload.step()

    def record() -> None:
        workload.model.zero_grad()
        recorded(workload, samples=SAMPLES).fetch()

    record()
    workload.model.zero_grad()
    first = peak_bytes(bare)
    workload.model.zero_grad()
    return first, peak_bytes(record)
