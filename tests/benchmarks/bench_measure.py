"""What measuring a tensor costs, against one `aminmax` and against five statistics with `.item()`.

    python tests/benchmarks/bench_measure.py [--rounds 15] [--threads 1] [--device cuda] [--report FILE]

Every round times every method once, in random order. The table gives nanoseconds per element, of processor
time where there is one thread, as median [quartiles]. The second aminmax is the noise of the machine.

On a CUDA device the table is of bandwidth, timed by events: bytes read by measuring, against bytes read and
written by a copy of the same tensor, and what an addition costs the host. The second copy is the noise.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ampcheck.observe.statistics import measure
from ampcheck.observe.statistics.measure import Arena

SIZES = (1_000, 100_000, 10_000_000)
ISAS = measure.NATIVE.isas() if measure.NATIVE else []
DEVICE_SIZES = (
    1_000,
    1_000_000,
    100_000_000,
    400_000_000,
)  # the last two leave the second-level cache behind
DEVICE_CALLS = 20  # between two events, so that the device is timed and not its waiting for the host
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ELEMENTS_A_TURN = 250_000  # small tensors are measured many times a turn, above the clock's resolution


def like_a_gradient(n: int, dtype: torch.dtype) -> Tensor:
    """Normal, small, a third of it zeros from a ReLU."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(n, generator=generator).mul_(1e-3)
    return values.mul_(torch.rand(n, generator=generator) > 0.3).to(dtype)


def naive(x: Tensor) -> tuple[float, ...]:
    """Five statistics as people write them."""
    finite = torch.isfinite(x)
    return (
        x.abs().max().item(),
        x.float().mean().item(),
        x.float().std().item(),
        (x == 0).float().mean().item(),
        (~finite).sum().item(),
    )


def methods(x: Tensor) -> dict[str, Callable[[], object]]:
    """Every way to look at a tensor, by name; compiled kernels have the name of their instruction set."""
    found: dict[str, Callable[[], object]] = {
        "aminmax": lambda: torch.aminmax(x),
        "aminmax again": lambda: torch.aminmax(x),
        "naive": lambda: naive(x),
        "torch": adding(x, "torch"),
    }
    return found | {isa: adding(x, "native") for isa in ISAS}


def adding(x: Tensor, kernel: Literal["native", "torch"]) -> Callable[[], object]:
    arena = Arena(kernel=kernel)
    row = arena.row()
    return lambda: arena.add(row, x)


def nanoseconds(x: Tensor, rounds: int) -> dict[str, list[float]]:
    """Time every method once a round, in random order."""
    order = random.Random(0)
    # A busy machine stretches wall time; with one thread the processor's time is what it would be alone.
    clock = time.process_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    calls = max(1, ELEMENTS_A_TURN // x.numel())
    found = methods(x)
    times: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(rounds + 1):
        for name in order.sample(list(found), len(found)):
            if name in ISAS:
                measure.NATIVE.force_isa(name)
            call = found[name]
            start = clock()
            for _ in range(calls):
                call()
            elapsed = clock() - start
            if turn:  # the first round warms up
                times[name].append(elapsed / calls / x.numel())
    return times


def device_methods(x: Tensor) -> dict[str, tuple[Callable[[], object], int]]:
    """Return what is timed on a device, with how many times it moves the tensor's bytes."""
    arena = Arena("cuda")
    if not arena.native():
        raise SystemExit("expected Triton to work here, got the error above; there is nothing to time")
    row, target = arena.row(), torch.empty_like(x)
    return {
        "copy": (lambda: target.copy_(x), 2),
        "copy again": (lambda: target.copy_(x), 2),
        "measure": (lambda: arena.add(row, x), 1),
        "aminmax": (lambda: torch.aminmax(x), 1),
    }


def device_times(x: Tensor, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return bytes a second on the device and seconds a call on the host, once a round, in random order."""
    order = random.Random(0)
    found = device_methods(x)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
    for turn in range(rounds + 1):
        for name in order.sample(list(found), len(found)):
            call, passes = found[name]
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            began = time.perf_counter()
            for _ in range(DEVICE_CALLS):
                call()
            host = (time.perf_counter() - began) / DEVICE_CALLS
            end.record()
            end.synchronize()
            if turn:  # the first round compiles
                seconds = start.elapsed_time(end) / 1000 / DEVICE_CALLS
                times[name].append((passes * x.nbytes / seconds, host))
    return times


def device_table(rounds: int) -> None:
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {rounds} rounds")
    print("| dtype | elements | method | GB/s, median [quartiles] | of copy | host us a call |")
    print("|---|---|---|---|---|---|")
    for dtype in DTYPES:
        for n in DEVICE_SIZES:
            times = device_times(like_a_gradient(n, dtype).cuda(), rounds)
            copy = statistics.median(rate for rate, _ in times["copy"])
            for name, pairs in times.items():
                low, middle, high = statistics.quantiles([rate for rate, _ in pairs], n=4)
                rates = f"{middle / 1e9:.0f} [{low / 1e9:.0f}-{high / 1e9:.0f}] | {middle / copy:.0%}"
                host = statistics.median(host for _, host in pairs) * 1e6
                label = str(dtype).removeprefix("torch.")
                print(f"| {label} | {n:,} | {name} | {rates} | {host:.1f} |")


HEAD = """\
# What measuring a tensor costs

Made by `python tests/benchmarks/bench_measure.py --report reports/kernel.md`.

torch {torch}, {threads} thread, {rounds} rounds; nanoseconds per element, of processor time, as median [quartiles].
Every round times every method once, in random order. *aminmax* is `torch.aminmax`, one read of the memory for two
numbers; "again" is the noise. *naive* is five statistics with `.item()`. The others write the whole record: exact
exponent histogram, zeros, infinities, NaNs, largest magnitude and sum of squares. {isas} are the compiled kernel by
instruction set, of which the first that a machine has is used; *torch* is what is left where there was no compiler
at installation. At 10,000,000 elements at most twice an aminmax is asked for in float32 and three times in half
precision, and the naive five to take at least five times as long.

| dtype | elements | method | ns an element | of aminmax | naive takes |
|---|---:|---|---:|---:|---:|
"""


def rows(rounds: int) -> Iterator[str]:
    """Yield a line for each way to measure each tensor."""
    for dtype in DTYPES:
        for n in SIZES:
            times = nanoseconds(like_a_gradient(n, dtype), rounds)
            medians = {name: statistics.median(values) for name, values in times.items()}
            for name, values in times.items():
                low, middle, high = statistics.quantiles(values, n=4)
                ratios = f"{middle / medians['aminmax']:.2f} | {medians['naive'] / middle:.1f}x"
                label = str(dtype).removeprefix("torch.")
                yield f"| {label} | {n:,} | {name} | {middle:.3f} [{low:.3f}-{high:.3f}] | {ratios} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.device == "cuda":
        device_table(asked.rounds)
        return
    isas = ", ".join(f"*{isa}*" for isa in ISAS)
    text = HEAD.format(torch=torch.__version__, threads=asked.threads, rounds=asked.rounds, isas=isas)
    text += "\n".join(rows(asked.rounds)) + "\n"
    if asked.report:
        asked.report.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
