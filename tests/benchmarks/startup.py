"""How long the command line takes before and until it says something; the smallest of several runs counts."""

import os
import subprocess
import sys
import time
from typing import NamedTuple

RUNS, AUDITS = 9, 3
#: Seconds that are allowed over bare Python, and for an audit from the shell to the verdict.
IMPORT_LIMIT, HELP_LIMIT, AUDIT_LIMIT = 0.1, 0.2, 20.0


class Seconds(NamedTuple):
    """The shortest of several runs of a process, by the clock and by the processor."""

    wall: float
    processor: float

    def over(self, other: "Seconds") -> "Seconds":
        return Seconds(self.wall - other.wall, self.processor - other.processor)


def seconds(words: list[str], runs: int, **environment: str) -> Seconds:
    """Return the shortest times of a Python process."""
    walls, processors = [], []
    for _ in range(runs):
        begun, before = time.perf_counter(), os.times()
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, check=False, env=os.environ | environment
        )
        after = os.times()
        walls.append(time.perf_counter() - begun)
        processors.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
        assert done.returncode in (0, 1), done.stderr.decode()
    return Seconds(min(walls), min(processors))


def startup() -> str:
    """Return the table of start-up times."""
    bare = seconds(["-c", "pass"], RUNS)
    audit = ["-m", "ampcheck", "torchvision:resnet18"]
    rows = [
        ("`import ampcheck`", seconds(["-c", "import ampcheck"], RUNS).over(bare), IMPORT_LIMIT),
        ("`ampcheck --help`", seconds(["-m", "ampcheck", "--help"], RUNS).over(bare), HELP_LIMIT),
        ("`import torch` alone", seconds(["-c", "import torch"], AUDITS).over(bare), ""),
        ("`ampcheck torchvision:resnet18`, shell to verdict", seconds(audit, AUDITS), AUDIT_LIMIT),
        ("the same with one thread", seconds(audit, AUDITS, OMP_NUM_THREADS="1"), AUDIT_LIMIT),
    ]
    lines = [f"| {name} | {took.wall:.2f} | {took.processor:.2f} | {limit} |" for name, took, limit in rows]
    load = f"Runnable processes while this was measured: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    return "\n".join(
        ["| | wall, s | processor, s | asked for, s |", "|---|---:|---:|---:|", *lines, "", load]
    )
