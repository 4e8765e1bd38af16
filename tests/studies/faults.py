"""What a death costs: each way to end a training, and what its report lacks afterwards.

python tests/studies/faults.py --report reports/faults.md        (from the root of the repository; some minutes)
"""

import argparse
import resource
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import deaths
import torch

from ampcheck.run.keeping import PAUSE, SHARE

FAULTS = {
    "nothing": "the script ends by itself",
    "SIGINT": "Ctrl-C",
    "SIGTERM": "SLURM, torchrun, kill",
    "SIGHUP": "the terminal is closed",
    "SIGUSR1": "SLURM's warning, without a handler",
    "handler": "SIGTERM, with a handler of the script that ends it",
    "in C": "SIGTERM while the main thread waits in C",
    "SIGKILL": "out of memory, a time limit",
    "_exit": "`os._exit`",
    "abort": "`os.abort`",
    "execv": "another program takes the process's place",
    "BaseException": "an exception that is no `Exception`",
    "MemoryError": "raised by the script",
    "RecursionError": "raised by the script",
    "full disk": "no file can grow beyond 2 kB",
}
WATCHING = """
import runpy, sys
import ampcheck
with ampcheck.watch(keep="r.json") as seen:
    runpy.run_path("train.py", run_name="__main__")
print("the program has a report of", seen.report().loop.steps, "steps", file=sys.stderr)
"""
CHECKED = """
import os, signal, sys, torch
from torch import nn

def model():
    return nn.Linear(4, 2)

def batch():
    return torch.randn(2, 4), torch.randint(0, 2, (2,))

def loss(model, batch):
    how = os.environ["HOW"]
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
    if how == "_exit":
        os._exit(3)
    if how == "MemoryError":
        raise MemoryError
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
TESTED = """
import os, signal, pytest
from model import batch, loss, model

def test_one(amp_audit):
    os.environ["HOW"] = "nothing"
    amp_audit(model(), batch(), loss)

def test_two():
    how = os.environ["DIES"]
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
    if how == "_exit":
        os._exit(3)
    if how == "MemoryError":
        raise MemoryError
"""


def listens():
    """Hear of Ctrl-C and of a terminal that is closed, whoever started this study."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def small_files():
    """Let no file grow: what a full disk does, and a quota."""
    listens()
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


def python(folder, how, *words):
    """Run Python in a folder until it dies as said."""
    return subprocess.run(
        [sys.executable, *words],
        check=False,
        cwd=folder,
        env=deaths.environment(LIVES="2.5", HOW=how, DIES=how),
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=small_files if how == "full disk" else listens,
    )


def lost(ended, place, word="step"):
    """Return what a saved report lacks of the steps that the script printed, each after a word."""
    if not place.is_file():
        return "all"
    try:
        steps, notes = deaths.saved(place)
    except (ValueError, KeyError, TypeError):
        return "all: the file is damaged"
    marked = ", marked incomplete" if any("incomplete" in note for note in notes) else ""
    seconds = deaths.seconds_lost(ended.stdout, steps, word)
    return (f"the last {seconds:.1f} s" if seconds > 0 else "nothing") + marked


def told(ended, found):
    """Return what was lost where the report may be on standard error instead."""
    if found.startswith("all") and "the program has a report" in ended.stderr:
        return f"no file (told {ended.stderr.count('File too large')}×), the program has the report"
    if found.startswith("all") and "Layers" in ended.stderr:
        return f"no file (told {ended.stderr.count('File too large')}×), the report is on standard error"
    return found


def run(folder, how):
    """Return what `ampcheck run` loses."""
    ended = python(folder, how, "-m", "ampcheck", "run", "-o", "r.json", "train.py", how)
    return told(ended, lost(ended, folder / "r.json"))


def watch(folder, how):
    """Return what a watch with a file to keep its report in loses."""
    (folder / "watching.py").write_text(WATCHING)
    ended = python(folder, how, "watching.py", how)
    return told(ended, lost(ended, folder / "r.json"))


def ranks(folder, how):
    """Return what two ranks lose of which the first dies."""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    ended = python(folder, how, *launch, "ampcheck", "run", "-o", "r.json", "train.py", how)
    first = told(ended, lost(ended, folder / "r.json"))
    other = folder / "r.rank1.json"
    second = lost(ended, other, "other") if other.is_file() else "in the report of rank 0"
    return f"rank 0: {first}; rank 1: {second}"


def check(folder, how):
    """Return what is left of an audit."""
    (folder / "model.py").write_text(CHECKED)
    ended = python(folder, how, "-m", "ampcheck", "model.py", "-o", "r.json")
    if (folder / "r.json").is_file():
        return "nothing"
    return told(ended, "all: no step had been audited")


def tested(folder, how):
    """Return what pytest still says of an audit in a test before the one that dies."""
    (folder / "model.py").write_text(CHECKED)
    (folder / "test_it.py").write_text(TESTED)
    words = ("-q", "-p", "no:cacheprovider", "--ampcheck-report", "out")
    ended = python(folder, how, "-m", "pytest", *words, "test_it.py")
    if how != "full disk":
        assert list((folder / "out").glob("*.html")), "no file of --ampcheck-report"
    return (
        "nothing"
        if "1 audit" in ended.stdout
        else "all but the files of --ampcheck-report, as pytest's own summary"
    )


COLUMNS = {"check": check, "run": run, "watch": watch, "pytest": tested, "two ranks": ranks}
#: What a step inside of an audit or a test can die of.
INSIDE = ("nothing", "SIGINT", "SIGTERM", "SIGKILL", "_exit", "MemoryError", "full disk")


def cell(column, how):
    """Return what one death costs in one setting."""
    if column in {"check", "pytest"} and how not in INSIDE:
        return "–"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(deaths.SCRIPT)
        try:
            return COLUMNS[column](folder, how)
        except subprocess.TimeoutExpired:
            return "no end within 300 s"
        except Exception as error:  # noqa: BLE001  # a cell that fails leaves the others
            return f"**not measured**: {type(error).__name__}: {error}"


def page(rows):
    """Return the table as Markdown."""
    heads = ["death", *COLUMNS]
    lines = [
        "# What a death costs",
        "",
        f"Made by `python tests/studies/faults.py --report reports/faults.md`. torch {torch.__version__}, CPU.",
        "",
        "A script trains for 2.5 seconds and then dies as said. What is compared is the last step that it printed and",
        "the last step that its report knows of. The report of a running script is written at most once in",
        f"{PAUSE:g} s, and takes at most one part in {SHARE} of the time: nothing that was recorded more than one",
        "such interval before may be lost. Of two ranks the first dies, and torchrun ends the other. `check` and",
        "pytest die in the first step of an audit, and in the test after an audit; a dash: not another case there.",
        "",
        "| " + " | ".join(heads) + " |",
        "|" + "---|" * len(heads),
    ]
    lines += [f"| {name}: {FAULTS[name]} | " + " | ".join(cells) + " |" for name, cells in rows.items()]
    return "\n".join(lines) + "\n"


def before(path):
    """Return the rows of a table that was written before, by fault."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {first.partition(":")[0]: rest for first, *rest in cells if first.partition(":")[0] in FAULTS}


def main():
    """Make the table, or part of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", type=Path)
    parser.add_argument("--faults", nargs="*", default=list(FAULTS))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    rows = before(options.report) if options.report else {}
    for how in options.faults:
        with ThreadPoolExecutor(options.jobs) as pool:
            rows[how] = list(pool.map(cell, COLUMNS, [how] * len(COLUMNS)))
        print(how, *rows[how], sep=" | ", flush=True)
        if options.report:
            ordered = {name: rows[name] for name in FAULTS if name in rows}
            options.report.write_text(page(ordered), encoding="utf-8")


if __name__ == "__main__":
    main()
