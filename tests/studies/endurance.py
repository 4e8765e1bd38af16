"""What takes many tries: interrupts at random moments, changed reports, and thousands of watched steps.

python tests/studies/endurance.py [interrupts | reports | memory ...]      writes reports/endurance.md; half an hour

Each part rewrites its own line of the page, and exits with 1 where it does not hold.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import forked

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "reports" / "endurance.md"
HEAD = """# What takes many tries

Made by `python tests/studies/endurance.py`, on a CPU; one part alone: `python tests/studies/endurance.py memory`.
An interrupted script has the exit status 130, or -2 where the signal itself has ended it: outside of ampcheck.

| tried | how often | what came of it |
|---|---:|---|
"""
#: Trains for about a second, with all that a recorded step needs: a scaler, an optimizer with a state, a scheduler.
SCRIPT = textwrap.dedent(
    """
    import os, sys, torch
    from torch import nn

    def resident():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer, scaler = torch.optim.AdamW(model.parameters(), 0.001), torch.amp.GradScaler("cpu")
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    steps = int(sys.argv[1])
    for step in range(steps):
        x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        if step == 0 or (step + 1) % 1000 == 0:
            print("resident", step + 1, resident(), flush=True)
    """
)


def environment():
    """Return what a program of ours runs in."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def interrupted(folder, after, *, twice):
    """Interrupt a watched script after so many seconds; return its exit status, what it said and its report."""
    report = folder / "r.json"
    report.unlink(missing_ok=True)
    started = subprocess.Popen(
        [*forked.python(), "-m", "ampcheck", "run", "--every", "3", "-o", report.name, "train.py", "300"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(after)
    for _ in range(1 + twice):
        started.send_signal(signal.SIGINT)
        time.sleep(0.05 * twice)
    said = started.communicate(timeout=120)[1]
    return started.returncode, said, report


def blame(said, report):
    """Return what is wrong with the end of an interrupted script; '' where nothing is."""
    ours = re.findall(r'File ".*/ampcheck/(?!__main__)[^"]*", line \d+, in \w+', said)
    if ours:
        return ours[-1]
    if "please report" in said:
        return said.strip().splitlines()[-1]
    if report.is_file():
        try:
            json.loads(report.read_text(encoding="utf-8"))
        except ValueError as error:
            return f"a damaged report: {error}"
    return ""


def interrupts(times=1000):
    """Interrupt so many scripts, every fourth twice; return the line of the page and whether it holds."""
    draw, bad, reports, statuses = random.Random(0), {}, 0, {}
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # whoever started this study: a shell may ignore it
    forked.python()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        began = time.monotonic()
        subprocess.run(
            [*forked.python(), "-m", "ampcheck", "run", "--every", "3", "train.py", "300"],
            cwd=folder,
            env=environment(),
            capture_output=True,
            check=True,
        )
        life = time.monotonic() - began
        for number in range(times):
            twice = number % 4 == 3
            status, said, report = interrupted(folder, draw.uniform(0.05, life), twice=twice)
            statuses[status] = statuses.get(status, 0) + 1
            reports += report.is_file()
            found = blame(said, report)
            if found:
                bad.setdefault(found, []).append(number)
                print(number, twice, found, said[-3000:], sep="\n", flush=True)
    ended = ", ".join(f"{count} with exit status {status}" for status, count in sorted(statuses.items()))
    words = f"{sum(map(len, bad.values()))} tracebacks of ampcheck's or damaged reports; {ended}; "
    words += f"{reports} left a report"
    return (
        f"| Ctrl-C at a random moment of a script of {life:.1f} s, every fourth twice | {times:,} | {words} |",
        not bad,
    )


def reports(times=10_000):
    """Change so many saved reports at random; each is refused in a sentence or shown in all formats."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "saved"))
    from test_mutated_reports import fuzz

    shown = fuzz(times, seed=2)
    words = f"{shown:,} shown in every format, {times - shown:,} refused in a sentence, no traceback"
    return f"| a saved report changed at random, then read and shown | {times:,} | {words} |", True


def memory(steps=20_000):
    """Watch so many steps; return what they add to the memory of the process once it has settled."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "train.py").write_text(SCRIPT)
        found = {}
        for watched in (False, True):
            ours = ["-m", "ampcheck", "run", "--no-live", "-o", "r.json"] if watched else []
            done = subprocess.run(
                [sys.executable, *ours, "train.py", str(steps)],
                cwd=name,
                env=environment(),
                capture_output=True,
                text=True,
                check=True,
            )
            kept = {int(n): int(kb) / 1024 for n, kb in re.findall(r"resident (\d+) (\d+)", done.stdout)}
            found[watched] = kept[steps] - kept[steps // 5], kept[steps]
    (alone, first), (grown, last) = found[False], found[True]
    words = f"from step {steps // 5:,} to the last {grown:+.1f} MB of {last:.0f} MB; "
    words += f"alone {alone:+.1f} MB of {first:.0f} MB"
    return f"| steps watched, one in 50 recorded: resident memory | {steps:,} | {words} |", grown < 8


FIRST = {"interrupts": "| Ctrl-C", "reports": "| a saved report", "memory": "| steps watched"}
PARTS = {"interrupts": interrupts, "reports": reports, "memory": memory}


def main(names):
    """Try the parts named, or all of them."""
    before = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.is_file() else []
    lines = {name: line for name, first in FIRST.items() for line in before if line.startswith(first)}
    good = True
    for name in names or PARTS:
        lines[name], holds = PARTS[name]()
        good = good and holds
        print(lines[name], flush=True)
    PAGE.write_text(HEAD + "".join(f"{lines[n]}\n" for n in PARTS if n in lines), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
