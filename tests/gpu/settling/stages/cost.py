"""Stage e, second part: recorded steps against bare ones and against other tools, in turns in one process."""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import peers
import torch
from workloads import Workload

from ampcheck.observe.layers import LayerRecorder
from ampcheck.observe.recorder import Recorder
from settling.keep import Row
from settling.plan import Scope
from settling.sizes import workload
from settling.work import Job

NAMES = ("resnet50, 64 images", "decoder, 12 layers", "many tiny operations")
#: Seconds to time one workload, and rounds at most.
_SECONDS = {False: 12.0, True: 0.5}
_ROUNDS = 25


def jobs(scope: Scope) -> Iterator[Job]:
    """Yield a row for each workload."""
    for name in NAMES:
        yield Job(name, partial(compared, name, scope.device, scope.small))


def arms(timed: Workload) -> dict[str, Callable[[], object]]:
    """Return the steps that are timed against each other; `again` is the bare one once more."""

    def under(kind: type[Recorder]) -> Callable[[], None]:
        def run() -> None:
            with kind(timed.model):
                timed.step()

        return run

    ours = {
        "bare": timed.step,
        "again": timed.step,
        "recorded": under(Recorder),
        "layers": under(LayerRecorder),
    }
    return ours | peers.peers(timed)


def compared(name: str, device: str, small: bool) -> Row:
    """Return the median time of a bare step, and of each other one as so many times it, with quartiles."""
    timed = arms(workload(name, device, small=small))
    failed: dict[str, str] = {}
    for arm, run in list(timed.items()):
        try:  # the first one compiles and warms up
            run()
        except Exception as error:  # noqa: BLE001  # another tool's failure is its own
            failed[arm] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
            del timed[arm]
    times: dict[str, list[float]] = {arm: [] for arm in timed}
    until = time.monotonic() + _SECONDS[small]
    while len(times["bare"]) < 3 or (len(times["bare"]) < _ROUNDS and time.monotonic() < until):
        for arm in random.sample(list(timed), len(timed)):
            times[arm].append(_seconds(timed[arm], device))
    row: Row = {"bare, ms": round(1e3 * statistics.median(times["bare"]), 3), "rounds": len(times["bare"])}
    for arm in timed.keys() - {"bare"}:
        ratios = [a / b for a, b in zip(times[arm], times["bare"], strict=True)]
        row[arm] = [round(ratio, 3) for ratio in statistics.quantiles(ratios)]
    return row | ({"failed": failed} if failed else {})


def _seconds(run: Callable[[], object], device: str) -> float:
    _wait(device)
    begun = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - begun


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
