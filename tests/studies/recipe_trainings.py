"""Do verdicts on FP8 and FP4 recipes hold? Three small trainings, plain and awkward, five recipes each.

    python tests/studies/recipe_trainings.py --report reports/recipes.md

Before: what an audit says of a recipe, from the gradients at the start and after 50 steps in bf16. After: whether
training under the recipe ends above bf16 by more than seeds do.
"""

import argparse
import pydoc_data.topics
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from recipe_curves import draw
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from ampcheck.fix.recipe_course import RecipeCourse, same
from ampcheck.fix.recipe_lab import IN_BF16, RecipeLab
from ampcheck.observe.fp8.emulate import Kept
from ampcheck.observe.step import Step
from ampcheck.values.recipe_audit import RecipeResult
from ampcheck.values.recipes import recipe

RECIPES = ("ao-tensorwise", "ao-rowwise-gw-hp", "te-delayed", "te-mxfp8", "te-nvfp4")
STEPS, LAST, SEEDS, BEFORE = 150, 20, 3, 50
#: A training fails if it ends higher than bf16 by more than this many standard deviations of seeds, and by 5 %.
DEVIATIONS, LEAST = 3.0, 0.05
INTRODUCTION = f"""\
{{rows}} trainings of {STEPS} steps: {{counted}}. Said before: from the gradients at the start and after {BEFORE}
steps in bf16; of te-nvfp4, from the first {BEFORE} steps of its training. Came: the mean loss of the last {LAST}
steps, against bf16 with the same seed. A training fails if it ends higher than bf16 by more than {DEVIATIONS:g}
standard deviations of {SEEDS} seeds in bf16, and by more than 5 %.

An error counts as a share of the gradient, or of its noise between two batches where that is larger (twice the
gradient at most).

Three trainings: a language model over characters on Python's own topics, a classifier and an autoencoder of
scikit-learn's digits. Awkward: rows of the head for no character hold garbage; samples that are not normalised; the
sine of large phases. Written by `tests/studies/recipe_trainings.py`."""
HEADS = (
    *("training", "recipe", "said", "worst gradient", "error at the start", "after bf16", "noise"),
    *("bf16 ends", "recipe ends", "verdict"),
)
SHOWN = (0, 10, 25, 50, 75, 100, 125, 149)


class Block(nn.Module):
    """Attention and a feed-forward, each behind a norm."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(d), nn.MultiheadAttention(d, heads, batch_first=True)
        self.norm2, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class CharLM(nn.Module):
    """A language model over characters; awkward: rows of the head for no character hold what memory held."""

    def __init__(self, awkward, chars=96, rows=128, d=32, context=16):
        super().__init__()
        self.chars = chars
        self.emb, self.place = nn.Embedding(chars, d), nn.Parameter(0.02 * torch.randn(context, d))
        self.blocks = nn.ModuleList([Block(d)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, rows, bias=False)
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1))
        if awkward:
            with torch.no_grad():
                self.head.weight[chars:] = 1e6 * torch.randn(rows - chars, d)

    def forward(self, i):
        x = self.emb(i) + self.place
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))[..., : self.chars]


class Digits(nn.Module):
    """A classifier; awkward: samples are not normalised, which its first norm forgives."""

    def __init__(self, awkward, d=64):
        super().__init__()
        self.first, self.norm = nn.Linear(64, d, bias=False), nn.LayerNorm(d)
        self.second, self.third, self.head = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 16)
        self.awkward = awkward

    def forward(self, x):
        if self.awkward:
            x = x * torch.logspace(0, 7, len(x), device=x.device)[:, None]
        h = self.norm(self.first(x))
        return self.head(F.gelu(self.third(F.gelu(self.second(F.gelu(h))))))


class Autoencoder(nn.Module):
    """Through sixteen numbers and back; awkward: the decoder begins with the sine of large phases."""

    def __init__(self, awkward, d=64):
        super().__init__()
        self.enc1, self.enc2 = nn.Linear(64, d), nn.Linear(d, 16)
        self.dec1, self.dec2 = nn.Linear(16, d), nn.Linear(d, 64)
        self.awkward = awkward
        if awkward:
            with torch.no_grad():
                self.dec1.weight.normal_(std=10.0)

    def forward(self, x):
        h = torch.tanh(self.enc2(F.gelu(self.enc1(x))))
        h = torch.sin(self.dec1(h)) if self.awkward else F.gelu(self.dec1(h))
        return self.dec2(h)


@cache
def text():
    """Return the text of Python's own topics as numbers below 96."""
    told = "\n".join(pydoc_data.topics.topics.values())
    return torch.tensor([min(max(ord(char) - 32, 0), 95) for char in told])


@cache
def digits():
    found = load_digits()
    return torch.tensor(found.data, dtype=torch.float32) / 16 - 0.5, torch.tensor(found.target)


def windows(seed, count=16, context=16):
    generator = torch.Generator().manual_seed(seed)
    data = text()
    starts = torch.randint(0, len(data) - context - 1, (count,), generator=generator)
    rows = torch.stack([data[start : start + context + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def samples(seed, count=64):
    generator = torch.Generator().manual_seed(seed)
    x, y = digits()
    at = torch.randint(0, len(x), (count,), generator=generator)
    return x[at], y[at]


@dataclass(frozen=True)
class Task:
    """A training."""

    name: str
    model: Callable[[bool], nn.Module]
    batch: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[[nn.Module, tuple[torch.Tensor, torch.Tensor]], torch.Tensor]
    rate: float


TASKS = (
    Task(
        "char-LM",
        CharLM,
        windows,
        lambda m, b: F.cross_entropy(m(b[0]).float().flatten(0, 1), b[1].flatten()),
        2e-3,
    ),
    Task("digits MLP", Digits, samples, lambda m, b: F.cross_entropy(m(b[0]).float(), b[1]), 1e-3),
    Task("digits autoencoder", Autoencoder, samples, lambda m, b: F.mse_loss(m(b[0]).float(), b[0]), 1e-3),
)


@dataclass(frozen=True)
class Row:
    """One training under one recipe, what was said before, and what came."""

    task: str
    recipe: str
    said: RecipeResult
    noise: float
    curve: list[float]
    bf16: list[float]
    ends: list[float]  #: of bf16, by seed

    @property
    def end(self):
        return statistics.fmean(self.curve[-LAST:])

    @property
    def gap(self):
        return self.end - self.ends[0]

    @property
    def limit(self):
        return max(DEVIATIONS * statistics.stdev(self.ends), LEAST * abs(self.ends[0]))

    @property
    def failed(self):
        return not self.gap <= self.limit

    @property
    def kind(self):
        if self.said.harmed:
            return "hit" if self.failed else "false alarm"
        return "miss" if self.failed else "right to pass"


def course(task, awkward, seed):
    torch.manual_seed(seed)
    model = task.model(awkward)
    batches = [task.batch(1000 * seed + step) for step in range(STEPS)]
    return RecipeCourse(
        model, batches, task.loss, lambda m: torch.optim.AdamW(m.parameters(), lr=task.rate), None
    )


def labs(task, awkward):
    """Return the step at the start and the one after a while in bf16, as an audit takes them."""
    made = course(task, awkward, 0)
    chosen = recipe(RECIPES[0])
    first = RecipeLab(Step(made.model, made.batches[0], task.loss), chosen, (), made.batches[1])
    before = made.snapshot()
    made.losses(chosen, IN_BF16, BEFORE)
    step = Step(made.model, made.batches[BEFORE], task.loss)
    later = RecipeLab(step, chosen, made.batches[BEFORE - 8 : BEFORE], made.batches[BEFORE + 1])
    before.restore()
    return first, later


def said(first, later, name, curve, bf16):
    chosen = recipe(name)
    ends = same(curve[:BEFORE], bf16[:BEFORE]) if chosen.four_bit else None
    return RecipeResult(first.outcome(chosen), trained=later.outcome(chosen), ends_as_bf16=ends)


def trained(task, awkward, name, steps=STEPS, seeds=SEEDS):
    if name is None:
        return [course(task, awkward, s).losses(recipe(RECIPES[0]), IN_BF16, steps) for s in range(seeds)]
    return course(task, awkward, 0).losses(recipe(name), Kept(), steps)


def study(tasks=TASKS, recipes=RECIPES):
    rows = []
    for task in tasks:
        for awkward in (False, True):
            bf16 = trained(task, awkward, None)
            ends = [statistics.fmean(curve[-LAST:]) for curve in bf16]
            first, later = labs(task, awkward)
            label = f"{task.name}, awkward" if awkward else task.name
            for name in recipes:
                begun = time.monotonic()
                curve = trained(task, awkward, name)
                verdict = said(first, later, name, curve, bf16[0])
                lab = later if verdict.harm is verdict.trained else first
                seen = lab.noise.get(verdict.harm.worst[0], 0.0)
                rows.append(Row(label, name, verdict, seen, curve, bf16[0], ends))
                print(f"{label:28} {name:18} {rows[-1].kind:14} {time.monotonic() - begun:.0f} s", flush=True)
    return rows


def page(rows):
    kinds = [row.kind for row in rows]
    counted = ", ".join(
        f"{kinds.count(kind)} {kind}" for kind in ("hit", "right to pass", "miss", "false alarm")
    )
    lines = [
        "# Recipes: what was said before training, and what came",
        "",
        INTRODUCTION.format(rows=len(rows), counted=counted),
        "",
        f"| {' | '.join(HEADS)} |",
        f"|---|---|---|---|{'---:|' * 5}---|",
    ]
    for row in rows:
        name, start = row.said.outcome.worst
        after = row.said.trained.worst[1] if row.said.trained is not None else float("nan")
        over = f"{row.noise:.2g}"
        word = "harms" if row.said.harmed else "trains"
        deviation = statistics.stdev(row.ends)
        lines.append(
            f"| {row.task} | {row.recipe} | {word} | {name} | {start:.3f} | {after:.3f} | {over} | "
            f"{row.ends[0]:.4f} ± {deviation:.4f} | {row.end:.4f} | {row.kind} |"
        )
    lines += ["", "## Where the verdict was wrong", ""]
    lines += [
        f"- {row.kind}: {row.task} under {row.recipe} ended {row.gap / row.ends[0]:+.1%} from bf16, where "
        f"{row.limit / row.ends[0]:.1%} counts as failed"
        for row in rows
        if row.kind in ("miss", "false alarm")
    ]
    lines += [
        "",
        "## Loss curves",
        "",
        "![Loss curves of the trainings](recipes.svg)",
        "",
        f"| training | recipe | {' | '.join(f'step {at}' for at in SHOWN)} |",
    ]
    lines.append(f"|---|---|{'---:|' * len(SHOWN)}")
    for at, row in enumerate(rows):
        if at % len(RECIPES) == 0:
            lines.append(f"| {row.task} | bf16 | {' | '.join(f'{row.bf16[step]:.4f}' for step in SHOWN)} |")
        lines.append(f"| | {row.recipe} | {' | '.join(f'{row.curve[step]:.4f}' for step in SHOWN)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--report", type=Path, required=True)
    torch.set_num_threads(1)
    options = parser.parse_args()
    options.report.write_text(page(study()), encoding="utf-8")
    draw(options.report)
