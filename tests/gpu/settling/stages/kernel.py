"""Stage e, first part: the statistics kernel on the device, exact against counts by hand, and its bandwidth."""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from ampcheck.observe.statistics.measure import AMAX, SQUARES, ZEROS, Arena
from settling.fixed import exponents, numbers
from settling.keep import Row
from settling.plan import Scope
from settling.work import Job

DTYPES = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64,
    "float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2,
}  # fmt: skip
_SIZES = (1, 4095, 4097, 300_001)
#: Bytes that are measured and copied: far more than any cache.
_BYTES = {False: 2**28, True: 2**20}
_ROUNDS = 15
#: Different elements of what is timed: they are made on the CPU.
_TILE = 2**16
#: float64 counts of one exponent word that float32 has no number for.
_INFS, _NANS = 257, 258


def jobs(scope: Scope) -> Iterator[Job]:
    """Yield exactness and bandwidth for each dtype."""
    for name in DTYPES:
        yield Job(f"exact {name}", partial(exact, name, scope.device))
    for name in DTYPES:
        yield Job(f"bandwidth {name}", partial(bandwidth, name, scope.device, _BYTES[scope.small]))


def _sample(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers over many powers of two, with zeros, infinities and NaN among them."""
    values = numbers(count, seed=3) * 2.0 ** (numbers(count, seed=4) * 8).round()
    values[::17] = 0.0
    if count > 1:
        values[1], values[count // 2] = float("nan"), float("inf")
    return values.to(dtype)


def exact(name: str, device: str) -> Row:
    """Compare the kernel's counts with counts by other operations; the list says in what they differ."""
    wrong = []
    for count in _SIZES:
        tensor = _sample(count, DTYPES[name]).to(device)
        where = Arena(device)
        row = where.row()
        where.add(row, tensor)
        record = where.read()[row].tolist()
        wrong += [f"{count} elements: {what}" for what in _wrong(record, tensor.cpu().double())]
    return {"wrong": wrong, "kernel": "compiled" if where.native() else "torch operations"}


def _wrong(record: list[int], values: torch.Tensor) -> Iterator[str]:
    finite = values[values.isfinite()]
    counted = {str(word - 127): count for word, count in enumerate(record[:ZEROS]) if count}
    by_hand = exponents(values)
    if counted != {key: count for key, count in by_hand.items() if key.lstrip("-").isdigit()}:
        yield "exponents"
    special = {"zero": record[ZEROS], "inf": record[_INFS], "nan": record[_NANS]}
    if {key: count for key, count in special.items() if count} != {
        key: count for key, count in by_hand.items() if not key.lstrip("-").isdigit()
    }:
        yield "zeros, infinities or NaN"
    largest = float(finite.abs().max()) if len(finite) else 0.0
    if _as_float(record[AMAX]) != largest:
        yield "largest"
    squares = float(finite.square().sum())
    if abs(_as_float(record[SQUARES]) - squares) > 1e-6 * squares:
        yield "sum of squares"


def _as_float(word: int) -> float:
    return float(torch.tensor([word]).view(torch.float64))


def bandwidth(name: str, device: str, size: int) -> Row:
    """Time the kernel and a copy on the device, in turns; bytes read, of the copy read and written."""
    count = size // DTYPES[name].itemsize
    tensor = _sample(_TILE, DTYPES[name]).to(device).repeat(count // _TILE)
    other = torch.empty_like(tensor)
    where = Arena(device)
    row = where.row()
    arms: dict[str, Callable[[], object]] = {
        "kernel": lambda: where.add(row, tensor), "copy": lambda: other.copy_(tensor),
    }  # fmt: skip
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    for turn in range(_ROUNDS + 3):
        for arm, run in arms.items():
            seconds = _timed(run, device)
            if turn >= 3:  # the first ones compile and warm up
                times[arm].append(seconds)
    kernel, copy = (statistics.median(times[arm]) for arm in ("kernel", "copy"))
    return {
        "bytes": size,
        "kernel GB/s": round(size / kernel / 1e9, 1),
        "copy GB/s": round(2 * size / copy / 1e9, 1),
        "share of the copy's": round(copy / (2 * kernel), 3),
    }


def _timed(run: Callable[[], object], device: str) -> float:
    if device != "cuda":
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
