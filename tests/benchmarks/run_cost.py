"""What watching a training loop costs: 200 steps bare and watched, in turns, with the noise of bare runs beside it.

python tests/benchmarks/run_cost.py    writes reports/run_cost.md
"""

import statistics
import time
from pathlib import Path

import torch
from torch import nn

from ampcheck.script import Session
from ampcheck.settings import Schedule

STEPS = 200
ROUNDS = 5
REPORT = Path(__file__).parents[2] / "reports" / "run_cost.md"


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10)),
    ), torch.randn(16, 3, 32, 32)


def transformer():
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(64 * 32, 10)
    ), torch.randn(16, 32, 64)


def seconds(build, session):
    """Train under bf16 autocast; return the seconds of all steps."""
    torch.manual_seed(0)
    model, x = build()
    optimizer, y = torch.optim.AdamW(model.parameters()), torch.randint(0, 10, (16,))

    def run():
        begun = time.perf_counter()
        for _ in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        return time.perf_counter() - begun

    if session is None:
        return run()
    with session.watching():
        return run()


WAYS = {
    "bare again": lambda: None,
    "watched, nothing recorded": lambda: Session(Schedule(steps=frozenset())),
    "--every 50": lambda: Session(Schedule(first=1, every=50)),
}


def main():
    torch.set_num_threads(1)
    lines = [
        "# What watching a loop costs",
        "",
        f"`python tests/benchmarks/run_cost.py`: {STEPS} steps under bf16 autocast on one CPU",
    ]
    lines += [
        f"thread, bare and watched in turns, {ROUNDS} rounds; ratio of times to the bare run before, median (lowest",
        "to highest).",
        "",
    ]
    lines += ["| loop | bare | " + " | ".join(WAYS) + " |", "|---|---|" + "---|" * len(WAYS)]
    for build in (cnn, transformer):
        ratios, bare = {name: [] for name in WAYS}, []
        seconds(build, None)
        for _ in range(ROUNDS):
            for name, session in WAYS.items():
                base = seconds(build, None)
                bare.append(base)
                ratios[name].append(seconds(build, session()) / base)
        cells = [
            f"{statistics.median(held):.3f} ({min(held):.3f} to {max(held):.3f})" for held in ratios.values()
        ]
        lines.append(
            f"| {build.__name__} | {1000 * statistics.median(bare) / STEPS:.1f} ms a step | "
            + " | ".join(cells)
            + " |"
        )
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(REPORT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
