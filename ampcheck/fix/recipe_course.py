"""A short training under a recipe beside the same training in bf16."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ampcheck.fix.long_trial import SAME_SHARE, built
from ampcheck.fix.recipe_lab import forward_and_backward
from ampcheck.observe.fp8.emulate import Emulation, Kept
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.step import Step
from ampcheck.values.recipes import Recipe

#: Losses at the end whose mean is compared.
_LAST = 5


@dataclass(frozen=True, slots=True)
class RecipeCourse:
    """What is trained: a model, its batches, its loss and its optimizer."""

    model: Any
    batches: Sequence[Any]
    loss: Callable[[Any, Any], Any]
    optimizer: Callable[[Any], torch.optim.Optimizer] | None
    after_step: Callable[[Any], object] | None
    keep: frozenset[str] = frozenset()  #: modules that are never rounded

    def losses(self, recipe: Recipe, kept: Kept, steps: int, seconds: float = float("inf")) -> list[float]:
        """Train from the present state and return the losses; fewer where the seconds are used up.

        The model is left trained: the caller puts it back.
        """
        until = time.monotonic() + seconds
        optimizer = built(self.optimizer, self.model)
        run = Emulation(recipe, replace(kept, modules=kept.modules | self.keep))
        losses: list[float] = []
        while len(losses) < steps and time.monotonic() < until:
            batch = self.batches[len(losses) % len(self.batches)]
            losses.append(float(forward_and_backward(Step(self.model, batch, self.loss), run)))
            run.memory.end_step()
            optimizer.step()
            if self.after_step is not None:
                self.after_step(self.model)
        return losses

    def snapshot(self) -> Snapshot:
        """Return the state that a training changes."""
        return Snapshot(self.model, self.loss, self.after_step, list(self.batches))


def same(losses: Sequence[float], beside: Sequence[float]) -> bool:
    """Tell whether a training ended where the one in bf16 did, or better, by the mean of the last losses."""
    last = _mean(beside)
    gained = abs(beside[0] - last)
    return _mean(losses) - last <= max(SAME_SHARE * gained, 1e-3 * abs(last))


def _mean(losses: Sequence[float]) -> float:
    end = losses[-_LAST:]
    return sum(end) / len(end)
