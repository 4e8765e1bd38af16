"""How long the command line takes before and until it says something; the smallest of several runs counts."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

RUNS, AUDITS, ROUNDS = 9, 3, 21
#: Seconds that are allowed over bare Python, and for an audit from the shell to the verdict.
IMPORT_LIMIT, HELP_LIMIT, AUDIT_LIMIT = 0.1, 0.2, 20.0
#: Milliseconds that an empty pytest run may take longer with the plug-in.
PYTEST_LIMIT = 20
NO_TESTS = 5  #: pytest's exit status


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
        begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, check=False, env=os.environ | environment
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        walls.append(time.perf_counter() - begun)
        processors.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode in (0, 1, NO_TESTS), done.stderr.decode()
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


def plug_in() -> str:
    """Return the table of what the plug-in adds to an empty pytest run, and what the method adds by itself."""
    with tempfile.TemporaryDirectory() as empty:
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", empty, empty]
        arms = {
            "without": [*words, "-p", "no:ampcheck"],
            "again": [*words, "-p", "no:ampcheck"],
            "with": words,
        }
        for arm in arms.values():
            seconds(arm, 1)
        # Turn about within each round, so that a machine that slows down slows all of them.
        rounds = []
        for turn in range(ROUNDS):
            names = list(arms)[turn % 3 :] + list(arms)[: turn % 3]
            rounds.append({name: seconds(arms[name], 1) for name in names})
    smallest = {name: Seconds(*map(min, zip(*(turn[name] for turn in rounds), strict=True))) for name in arms}
    added = {name: smallest[name].over(smallest["without"]) for name in ("with", "again")}
    assert added["with"].wall <= PYTEST_LIMIT / 1e3, added
    rows = [
        ("with the plug-in, less without", added["with"], str(PYTEST_LIMIT)),
        ("without once more, less without", added["again"], ""),
        ("without", smallest["without"], ""),
    ]
    lines = [
        f"| {n} | {1e3 * took.wall:.1f} | {1e3 * took.processor:.1f} | {limit} |" for n, took, limit in rows
    ]
    load = (
        f"{ROUNDS} rounds; runnable processes meanwhile: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    )
    return "\n".join(
        ["| | wall, ms | processor, ms | asked for, ms |", "|---|---:|---:|---:|", *lines, "", load]
    )
