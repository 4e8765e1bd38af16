"""Stage f: the bench's predicted memory and time against what it measures, over models and precisions."""

from collections.abc import Iterator
from functools import partial

import torch

from ampcheck.bench.request import OFF, Request
from ampcheck.bench.result import Bench, Case
from ampcheck.bench.result import Row as BenchRow
from ampcheck.bench.roofline import gpus
from ampcheck.bench.running.bench import Bencher
from ampcheck.targets.spec import Target
from settling.keep import Row
from settling.plan import Scope
from settling.sizes import MODELS, target
from settling.work import Job

#: Of a model as it is, and of a compiled one: each takes the compiler half a minute.
_PRECISIONS = {False: ("fp32", "tf32", "amp", "bf16"), True: ("fp32", "bf16")}
_SECONDS = {False: 4.0, True: 0.1}


def jobs(scope: Scope) -> Iterator[Job]:
    """Yield each model as it is, then what torch.compile makes of them, what it is done with soonest first."""
    for compiled in (False, True):
        for name in reversed(MODELS) if compiled else MODELS:
            if not scope.small or (name == "linear layers" and not compiled):
                key = f"{name}, compiled" if compiled else name
                yield Job(key, partial(benched, name, scope, compiled))


def card() -> str:
    """Return this GPU's name in the bench's table, nothing if it is not there; for a CPU some card stands."""
    if not torch.cuda.is_available():
        return "h100"
    words = torch.cuda.get_device_name().lower().replace("nvidia", "").replace("-", " ").split()
    known = sorted((gpu for gpu in gpus() if gpu.partition("-")[0] in words), key=len)
    if not known:
        return ""
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    fitting = [
        gpu for gpu in known if gpu.endswith(f"{_size(memory)}g") or ("pcie" in gpu and "pcie" in words)
    ]
    return (fitting or known)[0]


def _size(gib: float) -> int:
    return 40 if gib < 60 else 80


def benched(name: str, scope: Scope, compiled: bool) -> Row:
    """Return predicted and measured memory and time of each precision."""

    def make(_size: int | None, _seed: int) -> Target:
        return target(name, scope.device, small=scope.small)

    request = Request(
        precisions=_PRECISIONS[compiled], parts=("time", "memory"), compiled=("on" if compiled else OFF,),
        budget=_SECONDS[scope.small], gpus=tuple(filter(None, [card()])),
    )  # fmt: skip
    (case,) = Bencher(make, request).run(Bench(name)).cases
    return {row.precision: _figures(case, row) for row in case.rows}


def _figures(case: Case, row: BenchRow) -> Row:
    """Return the figures of one precision; off by so much: predicted over measured, less one."""
    found: Row = {"status": row.status}
    memory = row.memory
    if memory is not None and memory.predicted is not None:
        found["predicted, bytes"] = memory.predicted.peak_bytes
        measured = memory.cuda_allocated if memory.cuda_allocated is not None else memory.cpu_peak
        found |= _off("memory", memory.predicted.peak_bytes, measured)
    if row.time is not None and row.gpu_times:
        predicted = row.gpu_times[0].compiled if case.compiled else row.gpu_times[0].seconds
        found["predicted, ms"] = round(1e3 * predicted, 4)
        found |= _off("time", predicted, row.time.median)
    if row.message:
        found["message"] = row.message[:200]
    return found


def _off(what: str, predicted: float, measured: float | None) -> Row:
    if not measured:
        return {}
    shown = measured if what == "memory" else round(1e3 * measured, 4)
    return {f"{what}, measured": shown, f"{what}, off by": round(predicted / measured - 1, 4)}
