"""What ampcheck costs a training step, beside what other tools cost: reports/overhead.md and its picture.

    python tests/benchmarks/bench_overhead.py [--rounds 9] [--write reports]
    python tests/benchmarks/bench_overhead.py --only lstm --save lstm.json   # a part at a time
    python tests/benchmarks/bench_overhead.py --saved resnet18.json decoder.json lstm.json --write reports

Every round runs every arm of a workload once, in random order, in one process and one thread. The second bare
arm is the noise of the machine and the method: nothing smaller than its quartiles is resolved.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench_recorder import machine, table
from costs import MINIMUM_TURN
from overhead_text import ARMS, HEADER, INTRODUCTION, picture
from peers import peers, torchlens
from workloads import WORKLOADS, Workload

from ampcheck.observe.layers import LayerRecorder
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.statistics import measure
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.values.report import Report
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import ModuleInfo, Phase, Site, Trace

#: What the issue asks for, by workload: every operation, and layers only.
LIMITS = {"resnet18": (1.25, 1.1), "decoder": (1.5, 1.15), "lstm": (3.5, 2.2)}

Times = dict[str, list[float]]


def ours(workload: Workload) -> dict[str, Callable[[], object]]:
    """Return ampcheck's own ways to record a step."""

    def recorded(kind: type[Recorder], **options: Any) -> None:
        with kind(workload.model, **options):
            workload.step()

    def without_extension() -> None:
        kept, measure.NATIVE = measure.NATIVE, None
        try:
            recorded(Recorder, compiled=False)
        finally:
            measure.NATIVE = kept

    kept_recorder = Recorder(workload.model)

    def later() -> None:
        with kept_recorder:
            workload.step()

    return {
        "full": lambda: recorded(Recorder),
        "later": later,
        "layers": lambda: recorded(LayerRecorder),
        "python": lambda: recorded(Recorder, compiled=False),
        "torch": without_extension,
    }


def times(workload: Workload, rounds: int) -> Times:
    """Return the seconds of a step under each arm, one a round."""
    arms = {"bare": workload.step, "again": workload.step, **ours(workload), **peers(workload)}
    for run in arms.values():
        run()
    begun = time.process_time()
    workload.step()
    repeats = max(1, round(MINIMUM_TURN / max(time.process_time() - begun, 1e-6)))
    found: Times = {name: [] for name in arms}
    for _ in range(rounds):
        for name in random.sample(list(arms), len(arms)):
            begun = time.process_time()
            for _ in range(repeats):
                arms[name]()
            found[name].append((time.process_time() - begun) / repeats)
    last = torchlens(workload)
    for _ in range(rounds if last else 0):
        begun = time.process_time()
        last()
        found.setdefault("torchlens", []).append(time.process_time() - begun)
    return found


def ratio(found: Times, arm: str) -> tuple[float, float, float] | None:
    """Return the quartiles of an arm's time over the bare one of the same round; None where it was not run."""
    if arm not in found:
        return None
    low, middle, high = statistics.quantiles(
        [a / b for a, b in zip(found[arm], found["bare"], strict=True)], n=4
    )
    return low, middle, high


def rows(measured: dict[str, Times]) -> list[list[str]]:
    """Return the table: an arm a row, a workload a column."""
    lines = []
    for arm, words in ARMS.items():
        ratios = [ratio(found, arm) for found in measured.values()]
        cells = ["-" if r is None else f"{r[1]:.2f} [{r[0]:.2f}-{r[2]:.2f}]" for r in ratios]
        if any(ratios):
            lines.append([words, *cells])
    return lines


def loading(layers: int = 10_000) -> str:
    """Say how long a report of a large model takes to read."""
    phases = (("addmm", Phase.FORWARD), ("mm", Phase.BACKWARD))
    stats = TensorStats(-20, tuple(range(1, 31)), amax=1.5, sum_squares=9.0)
    sites = {
        Site(f"layers.{i}", op, "output", phase, "float16", "net.py", 7): stats
        for i in range(layers)
        for op, phase in phases
    }
    trace = Trace(sites=sites, modules=tuple(ModuleInfo(f"layers.{i}", "Linear", 1) for i in range(layers)))
    text = to_json(Report("net", "fp16", 16, reference=trace, low=trace))
    begun = time.process_time()
    from_json(text)
    seconds = time.process_time() - begun
    return (
        f"Reading a report of {layers:,} layers, {4 * layers:,} sites and {len(text) / 1e6:.0f} MB of JSON, takes "
        f"{seconds:.2f} s; 2 s is asked for."
    )


def report(measured: dict[str, Times]) -> str:
    bare = ", ".join(f"{name} {1e3 * statistics.median(t['bare']):.1f} ms" for name, t in measured.items())
    asked = [
        [
            name,
            *(
                f"{limit} | {ratio(t, arm)[1]:.2f}"
                for arm, limit in zip(("full", "layers"), LIMITS[name], strict=True)
            ),
        ]
        for name, t in measured.items()
    ]
    header = ["workload", "asked for, every operation", "is", "asked for, layers only", "is"]
    lines = ["| " + " | ".join(line) + " |" for line in (header, ["---"] + ["---:"] * 4, *asked)]
    rounds = ", ".join(f"{name} {len(t['bare'])}" for name, t in measured.items())
    text = INTRODUCTION.format(machine=machine(), rounds=rounds, bare=bare)
    return "\n\n".join(
        [HEADER, text.strip(), table(["step", *measured], rows(measured)), "\n".join(lines), loading()]
    )


def alone(name: str, rounds: int) -> dict[str, Times]:
    """Measure a workload in a process of its own: torchlens leaves torch slower behind."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times.json"
        words = [sys.executable, __file__, "--only", name, "--rounds", str(rounds), "--save", str(file)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Times] = json.loads(file.read_text())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=WORKLOADS)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--saved", type=Path, nargs="*", default=[])
    parser.add_argument("--write", type=Path, help="folder for overhead.md and overhead.svg")
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured: dict[str, Times] = {}
    for path in options.saved:
        measured |= json.loads(path.read_text())
    if options.only:
        measured[options.only] = found = times(WORKLOADS[options.only](), options.rounds)
        print(options.only, {arm: ratio(found, arm) for arm in found}, file=sys.stderr)
    for name in [] if options.only or options.saved else WORKLOADS:
        measured |= alone(name, options.rounds)
    if options.save:
        options.save.write_text(json.dumps(measured))
    text = report(measured)
    if options.write:
        (options.write / "overhead.md").write_text(text + "\n", encoding="utf-8")
        bars = {
            w: {arm: ratio(t, arm) for arm in ARMS if arm in t and arm != "torchlens"}
            for w, t in measured.items()
        }
        (options.write / "overhead.svg").write_text(picture(bars), encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
