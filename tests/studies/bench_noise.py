"""Honest noise: identical precisions timed against each other, and one pair in both orders.

python tests/studies/bench_noise.py --report reports/bench/noise.md
"""

import argparse
import os
import platform
from pathlib import Path
from statistics import median

import torch

from ampcheck.bench.intervals import ratio
from ampcheck.bench.result import AGAIN, Case, Row
from ampcheck.bench.running.arms import Arm
from ampcheck.bench.running.machine import Meanwhile, environment
from ampcheck.bench.running.precisions import precision
from ampcheck.bench.running.timing import Lane, interleave
from ampcheck.bench.verdicts import speed
from ampcheck.codec import write
from ampcheck.targets import Options, load

REPETITIONS = 20
TARGET = str(Path(__file__).parent / "bench" / "vit.py")


def lane(name, chosen):
    arm = Arm(load(TARGET, Options(batch_size=2)), precision(chosen))
    return Lane(name, arm.train, arm)


def measured(names, budget):
    """Time lanes; return their times and the order of every round."""
    lanes = [lane(name, chosen) for name, chosen in names.items()]
    orders = interleave(lanes, budget)
    return {one.name: one.result() for one in lanes}, orders


def identical(budget):
    """Return what is said of FP32 against itself, under another name."""
    times, _ = measured({"fp32": "fp32", "other": "fp32", AGAIN: "fp32"}, budget)
    case = Case(
        2, rows=(Row("fp32", time=times["fp32"]), Row("other", time=times["other"])), again=times[AGAIN]
    )
    return speed(case, case.rows[1])


def orders(budget):
    """Return the ratio of FP32 to bf16 where FP32 ran first, and where it ran second."""
    times, rounds = measured({"fp32": "fp32", "bf16": "bf16"}, budget)
    split = {True: ([], []), False: ([], [])}
    for at, names in enumerate(rounds):
        slow, fast = split[names.index("fp32") < names.index("bf16")]
        slow.append(times["fp32"].samples[at])
        fast.append(times["bf16"].samples[at])
    return [ratio(*split[first]) for first in (True, False)]


def report():
    device = torch.device("cpu")
    meanwhile = Meanwhile(device)
    found = [identical(2.0) for _ in range(REPETITIONS)]
    first, second = orders(12.0)
    quiet = sum(one.word == "no difference measured" for one in found)
    about = environment(device)
    agree = first.low <= second.high and second.low <= first.high
    lines = [
        "# Noise of the bench", "",
        "Made by `python tests/studies/bench_noise.py --report reports/bench/noise.md`.", "",
        f"torch {about['torch']}, {about['processor']}, {about['threads']} thread, {platform.system()}; "
        + ("; ".join(meanwhile.notes()) or "nothing else ran") + ". A small vision transformer, batch 2.", "",
        f"Identical precisions: **no difference measured in {quiet} of {REPETITIONS} repetitions**.", "",
        "| repetition | × as fast [95 %] | said |", "| --- | --- | --- |",
        *(f"| {at + 1} | {one.interval.estimate:.3f} [{one.interval.low:.3f}, {one.interval.high:.3f}] | {one.word} |"
          for at, one in enumerate(found)),
        "", f"Median of the estimates: {median(one.interval.estimate for one in found):.3f}.", "",
        "bf16 against FP32 in both orders, within the same interleaved run: "
        f"FP32 first {first.estimate:.3f} [{first.low:.3f}, {first.high:.3f}], "
        f"bf16 first {second.estimate:.3f} [{second.low:.3f}, {second.high:.3f}]: "
        + ("the intervals overlap, no order bias is seen." if agree else "**the intervals do not overlap.**"),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path, default=Path(os.devnull))
    write(parser.parse_args().report, report())
