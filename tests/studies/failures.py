"""Three real failures: the user's code, the finding, the plan, and training before and after it.

python tests/studies/failures.py --report reports/failures.md        (from the root of the repository)
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from failure_text import page
from judge import Opinion, opinion

from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from ampcheck.run.audit import audit
from ampcheck.targets import Options, load
from ampcheck.targets.spec import Target
from ampcheck.values.plan import Plan, ScalerPlan
from ampcheck.values.report import Report
from ampcheck.values.settings import Settings

FOLDER = Path(__file__).parent / "failures"


@dataclass(frozen=True)
class Failure:
    """A file with a model that fails, and how people come to run it."""

    file: str
    title: str
    story: str
    excerpt: str  #: the class or function to show
    precision: str
    usual: Plan  #: how it is trained before anybody has asked ampcheck
    usual_words: str
    steps: int

    @property
    def path(self) -> Path:
        """Return the file, from here where it is below."""
        path = FOLDER / self.file
        return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


FAILURES = (
    Failure(
        "t5_feed_forward.py",
        "A feed-forward that exceeds fp16: T5",
        "T5 and mT5 were trained in bf16 on TPUs. Fine-tuned in fp16 the loss is NaN from the first step on "
        "(huggingface/transformers#10956). A loss scaler skips every step and halves its scale without end: it acts "
        "after the forward and cannot help.",
        "GatedFeedForward",
        "fp16",
        Plan("fp16", scaler=ScalerPlan(2.0**16)),
        "fp16, GradScaler's defaults",
        60,
    ),
    Failure(
        "nerf_whole_image.py",
        "A loss divided by all pixels of an image: a radiance field",
        "Rays are drawn in chunks, and each chunk's error is divided by the pixels of the whole image so that "
        "chunks add up to its mean. That is right in FP32, and Adam takes no notice of the factor; in fp16 without a "
        "loss scale the gradients become zero. Nothing is raised and nothing is NaN: the loss just stays where it is.",
        "loss",
        "fp16",
        Plan("fp16"),
        "fp16 without a scaler",
        60,
    ),
    Failure(
        "rope_positions.py",
        "Rotary positions in bf16",
        "Positions take the dtype of the queries (EleutherAI/gpt-neox#1003). bf16 has eight bits: above 256 it counts "
        "in twos, above 512 in fours, and angles are rounded in proportion. Neighbours become one position. Nothing is "
        "non-finite, and the loss falls, to something else.",
        "Rotary",
        "bf16",
        Plan("bf16"),
        "bf16 autocast",
        120,
    ),
)


@dataclass(frozen=True)
class TrainingCurve:
    """A loss by step, and the steps that a scaler skipped."""

    losses: tuple[float, ...]
    skipped: int


@dataclass(frozen=True)
class Walk:
    """A failure from its code to the proof."""

    failure: Failure
    report: Report
    before: Opinion  #: gradients of the first step as people run it
    after: Opinion | None  #: with the plan; None where the plan is another precision
    fp32: TrainingCurve
    usual: TrainingCurve
    planned: TrainingCurve


def walk(failure: Failure, steps: int | None = None) -> Walk:
    """Audit a failure and train it in FP32, as usual, and with the plan."""
    report = audit(target(failure), Settings(failure.precision))
    plan = report.plan
    assert plan is not None

    def built():
        fresh = target(failure)
        return fresh.model, fresh.batch(0), fresh.loss

    scale = None if failure.usual.scaler else 0
    planned = None if plan.scaler is None else round(torch.tensor(plan.scaler.init_scale).log2().item())
    count = steps or failure.steps
    return Walk(
        failure,
        report,
        opinion(built, failure.precision, scale),
        opinion(built, plan.precision, planned, plan.fp32_modules),
        *(train(target(failure), use, count) for use in (Plan("fp32"), failure.usual, plan)),
    )


def target(failure: Failure) -> Target:
    """Return the failure's model, batches and loss, made anew."""
    return load(str(failure.path), Options())


def train(made: Target, plan: Plan, steps: int) -> TrainingCurve:
    """Train as a person does who was handed a plan."""
    plan.apply(made.model)
    assert made.optimizer is not None
    optimizer, scaler = made.optimizer(made.model), plan.grad_scaler("cpu")
    losses, skipped = [], 0
    for index in range(steps):
        optimizer.zero_grad()
        with on_cpu():
            with plan.autocast("cpu"):
                loss = made.loss(made.model, made.batch(index))
            scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
        losses.append(float(loss.detach()))
    return TrainingCurve(tuple(losses), skipped)


@contextmanager
def on_cpu() -> Iterator[None]:
    """Make the CPU's autocast CUDA's, with products accumulated in FP32 as Tensor Cores do."""
    with cuda_casting(), WideCompute():
        yield


def main() -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", type=Path, help="write the page here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = page([walk(failure) for failure in FAILURES])
    print(text)
    if options.report is not None:
        options.report.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
