"""What recording a step costs: time, host synchronisations, memory, size of the report, start-up.

    python tests/benchmarks/bench_recorder.py [--rounds 15] [--report reports/cost.md]

Every round runs every arm once, in random order, in one process and one thread; a second bare arm is the
noise of the machine. With a CUDA device the same steps are timed there too.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from cost_text import INTRODUCTION, MEMORY, PEERS, PLUG_IN, READS, SIZE, STARTUP, TIME
from costs import Timing, emulated, memory, reads, recorded, timing
from startup import plug_in, startup
from workloads import WORKLOADS, Workload, decoder

from ampcheck.observe.statistics.measure import Arena
from ampcheck.run.audit import audit
from ampcheck.saved.report_json import to_json
from ampcheck.targets import Options, load
from ampcheck.values.settings import Settings

#: What the issue asks for.
TRANSFORMER_LIMIT, MEMORY_LIMIT, SIZE_LIMIT = 1.6, 0.10, 0.05
MIB = 2**20
LAST = "## The pytest plug-in"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--report", type=Path)
    parser.add_argument(
        "--only-plug-in", action="store_true", help="renew only the last section of the report"
    )
    parser.add_argument("--resident", nargs=2, metavar=("WORKLOAD", "ARM"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.resident:
        print(_resident_here(*options.resident))
        return 0
    if options.only_plug_in:
        kept = options.report.read_text(encoding="utf-8").partition(f"\n{LAST}\n")[0]
        options.report.write_text(
            f"{kept.rstrip()}\n\n{LAST}\n\n{PLUG_IN.strip()}\n\n{plug_in()}\n", encoding="utf-8"
        )
        return 0
    parts = [
        "# What recording costs",
        INTRODUCTION.format(machine=machine(), rounds=options.rounds),
        "## Time", TIME, times("cpu", options.rounds), PEERS,
        "## Host synchronisations", READS, synchronisations(),
        "## Memory", MEMORY, memories(),
        "## Size of the report", SIZE, sizes(),
        "## Start-up", STARTUP, startup(),
        LAST, PLUG_IN, plug_in(),
    ]  # fmt: skip
    if torch.cuda.is_available():
        parts[4:4] = [f"On {torch.cuda.get_device_name()}:", times("cuda", options.rounds)]
    text = "\n\n".join(part.strip() for part in parts) + "\n"
    if options.report is None:
        print(text)
    else:
        options.report.write_text(text, encoding="utf-8")
    return 0


def machine() -> str:
    """Describe the machine without its name."""
    vector = torch.backends.cpu.get_cpu_capability()
    kernel = "compiled statistics kernel" if Arena("cpu").native() else "no compiled kernel"
    cores = os.cpu_count()
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{versions}, {cores} virtual cores ({vector}), {kernel}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def times(device: str, rounds: int) -> str:
    header = [
        "step",
        "bare, ms",
        "recorded / bare",
        "with samples and fetch",
        "bare / bare",
        "operations",
        "measured",
        "per operation, µs",
    ]
    rows = []
    for name, make in WORKLOADS.items():
        rows.append(_time_row(f"{name}, as it is", make(device), timing, rounds))
        if device == "cpu":
            wide = decoder(dtype=torch.float32) if name == "decoder" else make()
            rows.append(_time_row(f"{name}, fp16 by CUDA's rules on CPU", wide, emulated, rounds))
    return table(header, rows)


def _time_row(
    name: str, workload: Workload, measure: Callable[[Workload, int], Timing], rounds: int
) -> list[str]:
    found = measure(workload, rounds)
    say(f"{name}: {found.ratio}, audited {found.audited}, control {found.control}")
    if name.startswith("decoder"):
        assert found.audited.median <= TRANSFORMER_LIMIT, (
            f"expected at most {TRANSFORMER_LIMIT}, got {found.audited}"
        )
    recorder = recorded(workload)
    trace = recorder.trace(recorder.fetch())
    extra = 1e6 * (found.ratio.median - 1) * found.bare / trace.operations
    ratios = [str(ratio) for ratio in (found.ratio, found.audited, found.control)]
    # Under emulation more operations run than these: casts.
    counts = (trace.operations, trace.measured, f"{extra:.0f}") if measure is timing else ("", "", "")
    return [name, f"{1e3 * found.bare:.1f}", *ratios, *map(str, counts)]


def synchronisations() -> str:
    rows = []
    for name, make in WORKLOADS.items():
        inside, after = reads(make())
        rows.append([name, str(inside.total()), str(after["cpu"])])
        assert (inside.total(), after["cpu"]) == (0, 1)
    return table(["step", "inside the step", "afterwards"], rows)


def memories() -> str:
    rows = []
    for name, make in WORKLOADS.items():
        bare, with_recorder = memory(make())
        resident = [_resident(name, arm) for arm in ("bare", "bare", "recorded")]
        share = (with_recorder - bare) / bare
        say(f"{name}: {share:.1%} extra memory")
        assert name == "lstm" or share <= MEMORY_LIMIT, (
            f"expected at most {MEMORY_LIMIT:.0%}, got {share:.1%}"
        )
        cells = (f"{bare / MIB:.1f}", f"{(with_recorder - bare) / MIB:+.1f}", f"{share:.1%}")
        rows.append([name, *cells, *(f"{value / 1024:.1f}" for value in resident)])
    return table(["step", "bare, MiB", "recorder", "share", "resident: bare", "bare again", "recorded"], rows)


def _resident(name: str, arm: str) -> int:
    """Return the growth of resident memory over one step in a process of its own, in KiB."""
    words = [sys.executable, __file__, "--resident", name, arm]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def _resident_here(name: str, arm: str) -> int:
    workload = WORKLOADS[name]()
    run = workload.step if arm == "bare" else lambda: recorded(workload).fetch()
    run()
    workload.model.zero_grad()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the highest resident size
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def sizes() -> str:
    rows = []
    for batch in (2, 8):
        target = load("torchvision:resnet18", Options(small=True, batch_size=batch))
        report = audit(target, Settings(verify=False))
        elements = sum(s.numel for trace in (report.reference, report.low) for s in trace.sites.values())
        rows.append((batch, elements, len(to_json(report)), len(report.low.sites)))
    growth = rows[1][2] / rows[0][2] - 1
    assert abs(growth) <= SIZE_LIMIT, f"expected sizes within {SIZE_LIMIT:.0%}, got {growth:.1%}"
    say(f"report: {json.dumps(rows)}")
    cells = [[str(b), f"{e / 1e6:.0f} M", f"{size / 1024:.0f}", str(sites)] for b, e, size, sites in rows]
    return table(["batch", "elements measured", "JSON, KiB", "sites of the low-precision run"], cells)


if __name__ == "__main__":
    raise SystemExit(main())
