"""What the overhead report says, and its picture."""

from collections.abc import Mapping
from html import escape

HEADER = "# What ampcheck costs a step, beside others"
INTRODUCTION = """
Made by `python tests/benchmarks/bench_overhead.py --write reports`.

{machine}; one thread, processor time on a shared machine; rounds: {rounds}.
A figure is the median [quartiles] of the time of a step over that of a bare step of the same round;
all arms of a workload ran in one process, in random order in each round. "bare, again" is the noise.
Bare steps: {bare}.

Of the many tiny operations of *lstm* a dispatch mode that does nothing, the only way to see operations of the backward
and casts, takes most, together with hooks that tell which module runs. The first step of a recorder names 390 sites and
60 modules; a later one does not name them again. Which lines and operations there are stays known from one recorder of
a process to the next, and every arm ran once before it was timed.

The workloads are those of [cost](cost.md). Every operation, forward and backward, is recorded by the four rows
"every operation": the exact exponent histogram of each result with zeros, infinities, NaNs, largest magnitude and
sum of squares, module inputs and outputs, casts, the user's line. "Layers only" is `--layers-only`: what modules
take and give, and the gradients of what they give. The extension is optional: without it the last of the four
rows is what recording costs. No figure is of a GPU.

The peers record less: transformers' and the naive one look at module outputs (the naive one at their
gradients too), anomaly mode looks for NaN in the backward, and the idle dispatch mode does nothing at all.
torchlens copies every result of the forward and leaves the backward out: its row is a traced forward over a whole
bare step. It wraps torch's functions for good, so it ran after the others, without a first round to warm up;
the picture, whose scale it would take, leaves it out.

![bars](overhead.svg)
"""
ARMS = {
    "again": "bare, again",
    "full": "ampcheck, every operation",
    "later": "every operation, a later step of the same recorder",
    "layers": "ampcheck, layers only",
    "python": "every operation, compiled kernel, path in Python",
    "torch": "every operation, without the extension",
    "idle": "a TorchDispatchMode that does nothing",
    "idle, hooks": "the same, and module hooks that do nothing",
    "anomaly": "torch anomaly mode",
    "hugging face": "transformers DebugUnderflowOverflow",
    "naive": "five numbers with .item(), outputs and gradients",
    "torchlens": "torchlens, forward alone, results copied",
}
_LEFT, _WIDTH, _ROW, _HEAD = 330, 440, 20, 30
_OURS, _THEIRS = "#2563eb", "#9ca3af"

Quartiles = tuple[float, float, float]


def picture(bars: Mapping[str, Mapping[str, Quartiles]]) -> str:
    """Return bars of each arm's ratio, a panel a workload; the line at 1 is the bare step."""
    parts, y = [], 10.0
    for workload, arms in bars.items():
        y += _HEAD
        top = max(high for _, _, high in arms.values())
        parts.append(f'<text x="10" y="{y - 10:.0f}" font-weight="bold">{escape(workload)}</text>')
        parts.append(_panel(arms, top, y))
        y += _ROW * len(arms)
    height = y + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 90} {height:.0f}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(parts)}</svg>\n"
    )


def _panel(arms: Mapping[str, Quartiles], top: float, y: float) -> str:
    def x(value: float) -> float:
        return _LEFT + _WIDTH * value / top

    bottom = y + _ROW * len(arms)
    drawn = []
    for row, (arm, (low, middle, high)) in enumerate(arms.items()):
        at = y + _ROW * row
        fill = _OURS if arm in {"full", "later", "layers", "python", "torch"} else _THEIRS
        drawn += [
            f'<text x="{_LEFT - 8}" y="{at + 14:.0f}" text-anchor="end">{escape(ARMS[arm])}</text>',
            f'<rect x="{_LEFT}" y="{at + 3:.0f}" width="{x(middle) - _LEFT:.1f}" height="14" fill="{fill}"/>',
            f'<path d="M{x(low):.1f} {at + 10:.0f}H{x(high):.1f}" stroke="black" stroke-width="1.5"/>',
            f'<text x="{x(high) + 6:.1f}" y="{at + 14:.0f}">{middle:.2f}</text>',
        ]
    line = f'<path d="M{x(1):.1f} {y:.0f}V{bottom:.0f}" stroke="#dc2626" stroke-dasharray="3 2"/>'
    return "".join(drawn) + line
