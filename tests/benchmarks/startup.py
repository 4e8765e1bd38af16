"""How long the command line takes before and until it says something; the smallest of several runs counts."""

import subprocess
import sys
import time

RUNS = 9
#: Seconds that the issue allows over bare Python, and for an audit from the shell to the verdict.
IMPORT_LIMIT, HELP_LIMIT, AUDIT_LIMIT = 0.1, 0.2, 20.0


def seconds(words: list[str], runs: int) -> float:
    """Return the shortest wall time of a Python process."""
    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        done = subprocess.run([sys.executable, *words], capture_output=True, check=False)
        times.append(time.perf_counter() - begun)
        assert done.returncode in (0, 1), done.stderr.decode()
    return min(times)


def startup() -> str:
    """Return the table of start-up times, and check them."""
    bare = seconds(["-c", "pass"], RUNS)
    loading = seconds(["-c", "import ampcheck"], RUNS) - bare
    helping = seconds(["-m", "ampcheck", "--help"], RUNS) - bare
    auditing = seconds(["-m", "ampcheck", "torchvision:resnet18"], 1)
    torch_alone = seconds(["-c", "import torch"], 2) - bare
    rows = [
        ("`import ampcheck`, over bare Python", loading, IMPORT_LIMIT),
        ("`ampcheck --help`, over bare Python", helping, HELP_LIMIT),
        ("`ampcheck torchvision:resnet18`, shell to verdict", auditing, AUDIT_LIMIT),
        ("`import torch` alone, over bare Python", torch_alone, None),
    ]
    lines = [f"| {name} | {took:.3f} | {limit or ''} |" for name, took, limit in rows]
    print(*lines, sep="\n", file=sys.stderr)
    for name, took, limit in rows:
        assert limit is None or took <= limit, f"{name}: expected at most {limit} s, got {took:.3f}"
    return "\n".join(["| | seconds | asked for |", "|---|---:|---:|", *lines])
