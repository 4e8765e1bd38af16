"""What watching a training loop costs: 200 steps bare and watched, in turns, with the noise of bare runs beside it.

python tests/benchmarks/run_cost.py [LOOP ...]    writes reports/run_cost.md, or its lines about these loops
"""

import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule

STEPS, EVERY = 200, 50
REPORT = Path(__file__).parents[2] / "reports" / "run_cost.md"
HEAD = f"""# What watching a loop costs

`python tests/benchmarks/run_cost.py`: {STEPS} steps under bf16 autocast on one CPU thread, in CPU seconds, which
do not count waiting for other programs. Each number is the median, with the lowest and the highest, of rounds of
bare, watched, watched, bare: the two in the middle over the two around them. "Bare" again in the middle is the
noise of the method. Without recordings the median step is compared. What the recorded steps of `--every {EVERY}` add is
compared with the other steps of the same run, each of which counts as their median: what a shared machine does from one
run to the next is left out. The last column is one run over another, all {STEPS} steps as they were. In FP32 this CPU
computes convolutions at half the speed of bf16.

"""


FOOT = """
Between recorded steps a watch adds some 120 µs of Python to a step (the first line, whose noise is smallest), whatever
the model, and no wait for the device: 1.2 % of a step of 10 ms. It was 70 µs before threads, clipped gradients and
scales by hand were followed. Within the first four steps memory is looked through twice, some 30 ms each, once a run:
with the recorded steps that is most of the last column, and next to nothing of a longer run. `--every 50` records five
of 200 steps: the first with FP32 beside it, which takes three to four more bare steps, the others for 0.6 to 0.8.
In fp16, and where the first step leaves a question, FP32 runs beside the second and the 50th step too, each of which
costs as much again as the first. One other program ran on the second core.
"""


def cnn(channels=32, batch=16):
    return nn.Sequential(
        *(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()),
        *(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, 10)),
    ), torch.randn(batch, 3, 32, 32)


def transformer(width=64, layers=2, length=32):
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.TransformerEncoder(layer, layers, enable_nested_tensor=False),
        nn.Flatten(),
        nn.Linear(width * length, 10),
    ), torch.randn(16, length, width)


def least():
    return nn.Linear(1, 10), torch.randn(16, 1)


#: The loop, and rounds of it that fit into a minute or two.
LOOPS = {
    "one parameter": (least, 9),
    "cnn": (cnn, 7),
    "transformer": (transformer, 7),
    "larger cnn": (lambda: cnn(48, 64), 2),
    "larger transformer": (lambda: transformer(192, 3, 64), 2),
}


def seconds(build, session):
    """Train under bf16 autocast; return the CPU seconds of each step."""
    torch.manual_seed(0)
    model, x = build()
    optimizer, y = torch.optim.AdamW(model.parameters()), torch.randint(0, 10, (len(x),))

    def step():
        begun = time.process_time()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return time.process_time() - begun

    for _ in range(3):
        step()
    if session is None:
        return [step() for _ in range(STEPS)]
    with session.watching():
        return [step() for _ in range(STEPS)]


RECORDED = [0, 1, *range(EVERY, STEPS, EVERY)]


def with_recorded(steps):
    """Return the time of a run over one in which the recorded steps are like the median of the others."""
    others = [taken for step, taken in enumerate(steps) if step not in RECORDED]
    usual = statistics.median(others)
    return (sum(steps[step] for step in RECORDED) + len(others) * usual) / (STEPS * usual)


#: By kind of run: what is watched in the middle of a round, and what is compared, by column.
WAYS = {
    "bare": (lambda: None, {"bare again": statistics.median}),
    "idle": (lambda: Session(Schedule(steps=frozenset())), {"watched, nothing recorded": statistics.median}),
    "every": (
        lambda: Session(Schedule(every=EVERY)),
        {f"--every {EVERY}, all steps as they were": sum},
    ),
}


RECORDED_ADD = f"with the recorded steps of --every {EVERY}"
COLUMNS = [
    "bare again",
    "watched, nothing recorded",
    RECORDED_ADD,
    f"--every {EVERY}, all steps as they were",
]


def row(name):
    """Return a line of the table."""
    build, rounds = LOOPS[name]
    ratios, bare, added, median = {RECORDED_ADD: []}, [], [], statistics.median
    for _ in range(rounds):
        for way, (session, columns) in WAYS.items():
            a, b, c, d = (seconds(build, made) for made in (None, session(), session(), None))
            for column, of in columns.items():
                ratios.setdefault(column, []).append((of(b) + of(c)) / (of(a) + of(d)))
            bare += [median(a), median(d)]
            if way == "every":
                ratios[RECORDED_ADD] += [with_recorded(b), with_recorded(c)]
            if way == "idle":
                added.append((median(b) + median(c) - median(a) - median(d)) / 2)
    ratios = {column: ratios[column] for column in COLUMNS}
    cells = [f"{median(held):.3f} ({min(held):.3f} to {max(held):.3f})" for held in ratios.values()]
    first = [f"{1000 * median(bare):.2f} ms", f"{1e6 * median(added):.0f} µs"]
    return "| " + " | ".join([f"{name}, {rounds} rounds", *first, *cells]) + " |"


def main(wanted):
    torch.set_num_threads(1)
    fresh = {name: row(name) for name in wanted or LOOPS}
    before = REPORT.read_text(encoding="utf-8").splitlines() if REPORT.exists() else []
    known = {line[2:].partition(",")[0]: line for line in before if " rounds |" in line} | fresh
    titles = ["loop", "bare step", "added to a step", *COLUMNS]
    table = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    lines = [known[name] for name in LOOPS if name in known]
    REPORT.write_text(HEAD + "\n".join(table + lines) + "\n" + FOOT, encoding="utf-8")
    print(REPORT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(sys.argv[1:])
