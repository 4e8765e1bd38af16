"""The page that walks through failures."""

import ast
import math
from typing import TYPE_CHECKING

import torch

from ampcheck.renderers.terminal import render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from failures import Failure, TrainingCurve, Walk
    from judge import Opinion

_WIDTH = 100
_HEAD = """# Three failures, from the code to the proof

Made by `python tests/studies/failures.py --report reports/failures.md`. torch {torch}, CPU.

Each model is a file in `tests/studies/failures/`, small and written for this page after a failure that people have met.
What ampcheck prints is shown as it prints it, down to the layer table. The proof is an ordinary training loop, without
ampcheck's recorder or lab, three times from the same weights on the same batches: in FP32, the way it is usually run,
and with the plan (`plan.apply(model)`, `plan.autocast()`, `plan.grad_scaler()`).

There is no GPU behind these numbers. Casts follow CUDA's rules and products of half-precision numbers are accumulated
in FP32 and rounded once, as Tensor Cores do; a GPU's kernels add in another order, so last digits differ there, while
ranges and spacings of the formats, which all three failures are about, are the same.

{contents}
"""
_FAILURE = """
## {title}

{story}

[`{name}`](../tests/studies/failures/{name}):

```python
{code}
```

**Finding.** `python -m ampcheck tests/studies/failures/{name} --precision {precision}` (top of its output)

```text
{finding}
```

**Plan**, as `--save-plan` writes it:

```json
{plan}```
{patch}
**Proof.** Gradients of the first step against FP32's:

| | loss scale | gradient error | underflow | loss error |
|---|---:|---:|---:|---:|
| {usual} | {before} |
| {precision} with the plan | {after} |

Loss by training step:

{curve}
{conclusion}
"""


def page(walks: "Sequence[Walk]") -> str:
    """Return the page as Markdown."""
    contents = "\n".join(
        f"{at}. {walk.failure.title}: {_conclusion(walk)}" for at, walk in enumerate(walks, 1)
    )
    head = _HEAD.format(torch=torch.__version__.partition("+")[0], contents=contents)
    return head + "".join(_section(walk) for walk in walks)


def _section(walk: "Walk") -> str:
    failure, plan = walk.failure, walk.report.plan
    assert plan is not None
    return _FAILURE.format(
        title=failure.title,
        story=failure.story,
        name=failure.file,
        code=excerpt(failure),
        precision=failure.precision,
        finding=_top(walk),
        plan=plan.to_json(),
        patch=_patch(walk.report.patch),
        usual=failure.usual_words,
        before=_opinion(walk.before),
        after=_opinion(walk.after),
        curve=_curve(walk),
        conclusion=_conclusion(walk),
    )


def excerpt(failure: "Failure") -> str:
    """Return the source of the class or function that a failure is about, with its line numbers."""
    text = failure.path.read_text(encoding="utf-8")
    nodes = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    node = next(node for node in nodes if node.name == failure.excerpt)
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return f"# line {node.lineno}\n" + "\n".join(lines)


def _top(walk: "Walk") -> str:
    """Return what the terminal shows above the layers, without the patch, which has a place of its own."""
    text = render(walk.report, width=_WIDTH).partition("\nLayers")[0].strip("\n")
    kept, inside = [], False
    for line in text.splitlines():
        inside = line.startswith("  --- a/") or (inside and not line.startswith("  ·"))
        if not inside:
            kept.append(line.rstrip())
    return "\n".join(kept).strip("\n")


def _patch(patch: str) -> str:
    if not patch:
        return ""
    kind = "diff" if patch.startswith("--- ") else "python"
    return f"\n**Patch**, as `--save-patch` writes it:\n\n```{kind}\n{patch.rstrip()}\n```\n"


def _opinion(one: "Opinion") -> str:
    cells = [f"2^{one.log2_scale}", *(_share(value) for value in (one.error, one.underflow, one.loss_error))]
    return " | ".join(cells)


def _share(value: float) -> str:
    return f"{value:.2%}" if math.isfinite(value) else "not finite"


def _curve(walk: "Walk") -> str:
    steps = len(walk.fp32.losses)
    shown = sorted({1, *(round(steps * part) for part in (0.1, 0.25, 0.5, 0.75, 1.0))})
    rows = {"FP32": walk.fp32, walk.failure.usual_words: walk.usual, "with the plan": walk.planned}
    text = f"| | {' | '.join(map(str, shown))} | steps skipped |\n|---|{'---:|' * (len(shown) + 1)}\n"
    for name, course in rows.items():
        losses = (f"{course.losses[step - 1]:.4g}" for step in shown)
        text += f"| {name} | {' | '.join(losses)} | {course.skipped} of {steps} |\n"
    return text


def _conclusion(walk: "Walk") -> str:
    steps = len(walk.fp32.losses)
    wide, usual, planned = (f"{_mean_end(course):.4g}" for course in (walk.fp32, walk.usual, walk.planned))
    return (
        f"mean loss of the last {_last(steps)} of {steps} steps: FP32 {wide}, "
        f"{walk.failure.usual_words} {usual}, with the plan {planned}."
    )


def _last(steps: int) -> int:
    return min(8, steps)


def _mean_end(course: "TrainingCurve") -> float:
    """Return the mean loss over one pass of the batches at the end."""
    last = _last(len(course.losses))
    return sum(course.losses[-last:]) / last
