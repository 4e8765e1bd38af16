"""How often a slow-down is found, in simulated rounds: bench_power.py --report reports/bench/power.md

Rounds drift together by a third, blocks spread by a share, and neighbouring rounds resemble each other. Nothing is
measured, so that the answer is the same on every machine; bench_noise.py puts slow-downs into real steps.
"""

import argparse
import math
import random
from pathlib import Path

from ampcheck.bench.result import Case, Row, Time
from ampcheck.bench.verdicts import speed
from ampcheck.saved.report_json import write

SLOWDOWNS = (0.0, 0.02, 0.05, 0.10)
SPREADS = (0.01, 0.03, 0.10)
ROUNDS = (4, 10, 20, 60)
TRIALS, ALIKE, DRIFT = 60, 0.5, 0.3
TEXT = """\
# How often a slow-down is found

Made by `python tests/studies/bench_power.py --report reports/bench/power.md`. Simulated, not measured: {trials} benches
for each cell, whose rounds drift together by {drift:.0%}, whose blocks spread by the share on the left, and whose
neighbouring rounds resemble each other by {alike}. FP32 is timed a second time as in every bench, and a difference
is called one where it is seen beside both. A cell says how often the slowed precision is called slower; the column 0 %
is how often the bench is wrong.

| spread of blocks | rounds | {titles} |
| --- | --- | {dashes} |
"""


def lane(draw, drift, spread, slower=0.0):
    """Return the samples of a precision in these rounds."""
    error, samples = draw.gauss(0, 1), []
    for factor in drift:
        samples.append((1 + slower) * factor * math.exp(spread * error))
        error = ALIKE * error + math.sqrt(1 - ALIKE**2) * draw.gauss(0, 1)
    return Time(tuple(samples), 1)


def found(slower, spread, rounds):
    """Return how often a slow-down is called one."""
    times = 0
    for trial in range(TRIALS):
        draw = random.Random(trial)
        drift = [math.exp(draw.gauss(0, DRIFT)) for _ in range(rounds)]
        base, slowed, again = (lane(draw, drift, spread, share) for share in (0.0, slower, 0.0))
        case = Case(1, rows=(Row("fp32", time=base), Row("slowed", time=slowed)), again=again)
        times += speed(case, case.rows[1]).word == "slower"
    return times / TRIALS


def report():
    """Return the table."""
    titles = " | ".join(f"{share:.0%} slower" for share in SLOWDOWNS)
    text = TEXT.format(
        trials=TRIALS, drift=DRIFT, alike=ALIKE, titles=titles, dashes=" | ".join(["---"] * len(SLOWDOWNS))
    )
    for spread in SPREADS:
        for rounds in ROUNDS:
            cells = " | ".join(f"{found(share, spread, rounds):.0%}" for share in SLOWDOWNS)
            text += f"| {spread:.0%} | {rounds} | {cells} |\n"
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path, required=True)
    write(parser.parse_args().report, report())
