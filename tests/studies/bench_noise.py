"""Honest noise: identical precisions timed against each other, one pair in both orders, and slow-downs put in.

python tests/studies/bench_noise.py --report reports/bench/noise.md
python tests/studies/bench_noise.py --slowdowns reports/bench/slowdowns.md --rounds 60 --cpu-time

With --cpu-time the clock is the processor time of this process: what others do on the machine does not stretch it.
"""

import argparse
import math
import platform
import time
import types
from pathlib import Path
from statistics import median

import torch

from ampcheck.bench.intervals import ratio
from ampcheck.bench.result import AGAIN, Case, Row
from ampcheck.bench.running import timing
from ampcheck.bench.running.arms import Arm
from ampcheck.bench.running.machine import MachineLoad, environment
from ampcheck.bench.running.precisions import precision
from ampcheck.bench.running.timing import Lane, interleave
from ampcheck.bench.verdicts import speed
from ampcheck.saved.report_json import write
from ampcheck.targets import Options, load

REPETITIONS = 20
#: Shares of a step that are waited after it, and how often each is tried.
SLOWDOWNS = (0.0, 0.02, 0.05, 0.10)
CALIBRATION = 20
TARGET = str(Path(__file__).parent / "bench" / "vit.py")


def lane(name, chosen):
    arm = Arm(load(TARGET, Options(batch_size=2)), precision(chosen))
    return Lane(name, arm.train, arm)


def measured(names, budget):
    """Time lanes; return their times and the order of every round."""
    lanes = [lane(name, chosen) for name, chosen in names.items()]
    orders = interleave(lanes, budget).orders
    return {one.name: one.result() for one in lanes}, orders


def identical(budget):
    """Return what is said of FP32 against itself, under another name."""
    times, _ = measured({"fp32": "fp32", "other": "fp32", AGAIN: "fp32"}, budget)
    case = Case(
        2, rows=(Row("fp32", time=times["fp32"]), Row("other", time=times["other"])), again=times[AGAIN]
    )
    return speed(case, case.rows[1])


def slowed(share, rounds):
    """Return what is said of FP32 beside itself with a share of its own time spent waiting, and the true ratio."""
    lanes = [lane(name, "fp32") for name in ("fp32", "slowed", AGAIN)]
    with lanes[1].arm.running():
        wait = share * median(_seconds(lanes[1].arm.train) for _ in range(CALIBRATION))
    train = lanes[1].arm.train

    def step():
        train()
        until = timing.time.perf_counter() + wait
        while timing.time.perf_counter() < until:
            pass

    lanes[1].step = step
    interleave(lanes, math.inf, rounds=rounds)
    times = [one.result() for one in lanes]
    case = Case(2, rows=(Row("fp32", time=times[0]), Row("slowed", time=times[1])), again=times[2])
    return speed(case, case.rows[1]), 1 / (1 + wait / median((*times[0].samples, *times[2].samples)))


def _seconds(act):
    begun = timing.time.perf_counter()
    act()
    return timing.time.perf_counter() - begun


def found_slowdowns(rounds, repeats):
    """Return a line for each slow-down that was put in: how often it is called slower, and the median estimate."""
    lines = []
    for share in SLOWDOWNS:
        pairs = [slowed(share, rounds) for _ in range(repeats)]
        said = [one for one, _ in pairs]
        slower = sum(one.word == "slower" for one in said)
        held = sum(one.interval.low <= true <= one.interval.high for one, true in pairs)
        width = median(one.interval.half_width for one in said)
        estimate, true = median(one.interval.estimate for one in said), median(true for _, true in pairs)
        seen = median(one.seen_from for one in said)
        print(share, [(one.word, round(one.interval.estimate, 3)) for one in said], flush=True)
        lines.append(
            f"| {share:.0%} | {true:.3f} | {estimate:.3f} | ±{width:.1%} | {seen:.1%} "
            f"| {slower} of {repeats} | {held} of {repeats} |"
        )
    return lines


def slowdowns(rounds, repeats, *, cpu_time):
    """Return the report of the slow-downs that were put in."""
    torch.set_num_threads(1)
    if cpu_time:
        timing.time = types.SimpleNamespace(perf_counter=time.process_time, monotonic=time.monotonic)
    load, about = MachineLoad(torch.device("cpu")), environment(torch.device("cpu"))
    begun = time.monotonic()
    found = found_slowdowns(rounds, repeats)
    clock = "the processor time of the process" if cpu_time else "the wall clock"
    lines = [
        "# Slow-downs that were put in", "",
        f"Made by `python tests/studies/bench_noise.py --slowdowns reports/bench/slowdowns.md --rounds {rounds} "
        f"--repeats {repeats}" + " --cpu-time" * cpu_time + f"` in {time.monotonic() - begun:.0f} s.", "",
        f"torch {about['torch']}, {about['processor']}, threads {about['threads']}, {platform.system()}; "
        + ("; ".join(load.notes()) or "nothing else ran") + ".",
        f"Steps of a small vision transformer, batch 2, by {clock}, in {rounds} rounds.",
        "FP32 beside itself, with a share of its own step spent waiting after each step. 0 % is how often the bench",
        "is wrong. *Would be seen* is what the bench says: the difference that its rounds show in four of five times.",
        "[Simulated rounds](power.md) say how often a slow-down is found at other spreads and numbers of rounds.", "",
        "| put in | true ratio | median estimate | half an interval | would be seen | called slower | held the truth |",
        "| --- | --- | --- | --- | --- | --- | --- |", *found,
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


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
    machine_load = MachineLoad(device)
    found = [identical(2.0) for _ in range(REPETITIONS)]
    first, second = orders(12.0)
    quiet = sum(one.word == "no difference measured" for one in found)
    about = environment(device)
    agree = first.low <= second.high and second.low <= first.high
    lines = [
        "# Noise of the bench", "",
        "Made by `python tests/studies/bench_noise.py --report reports/bench/noise.md`.", "",
        f"torch {about['torch']}, {about['processor']}, threads {about['threads']}, {platform.system()}; "
        + ("; ".join(machine_load.notes()) or "nothing else ran") + ". A small vision transformer, batch 2.", "",
        f"Identical precisions: **no difference measured in {quiet} of {REPETITIONS} repetitions**.", "",
        "| repetition | × as fast [95 %] | said |", "| --- | --- | --- |",
        *(f"| {at + 1} | {one.interval.estimate:.3f} [{one.interval.low:.3f}, {one.interval.high:.3f}] | {one.word} |"
          for at, one in enumerate(found)),
        "",
        f"Median of the estimates of identical precisions: {median(one.interval.estimate for one in found):.3f}.", "",
        "bf16 against FP32 in both orders, within the same interleaved run: "
        f"FP32 first {first.estimate:.3f} [{first.low:.3f}, {first.high:.3f}], "
        f"bf16 first {second.estimate:.3f} [{second.low:.3f}, {second.high:.3f}]: "
        + ("the intervals overlap, no order bias is seen." if agree else "**the intervals do not overlap.**"),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path)
    parser.add_argument("--slowdowns", type=Path)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--rounds", type=int, default=60, help="of each measurement of a slow-down")
    parser.add_argument("--repeats", type=int, default=8, help="measurements of each slow-down")
    options = parser.parse_args()
    if options.report:
        write(options.report, report())
    if options.slowdowns:
        write(options.slowdowns, slowdowns(options.rounds, options.repeats, cpu_time=options.cpu_time))
