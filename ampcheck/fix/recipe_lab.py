"""Runs one step under recipes again and again from the same state, and compares it with its bf16 run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ampcheck.fix.verify import Lab, comparison, run_unseen
from ampcheck.observe.fp8.delayed import Memory
from ampcheck.observe.fp8.emulate import Emulation, Kept, emulated
from ampcheck.observe.fp8.operands import OperandRecorder
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.step import Step
from ampcheck.values.recipe_audit import UNDETERMINED, OperandStats, RecipeOutcome
from ampcheck.values.recipes import Recipe

#: Steps after which delayed scales have settled, or never do: a gradient that is underflowed at a scale of 1 comes
#: back one layer a step.
SETTLING = 24
#: Where batches differ by more than a gradient's own size, its error counts as a share of their noise. No further
#: than this: a gradient that is lost is off by all of itself, and has to count as harm whatever the noise.
MOST_NOISE = 2.0
IN_BF16 = Kept(only=frozenset())
#: Nothing stays in bf16.
EVERYTHING = Kept()


def forward_and_backward(step: Step, run: Emulation) -> torch.Tensor:
    """Run a step under an emulation, in bf16 around it, and return the loss; the gradients stay in the parameters."""
    return run_unseen(step, torch.bfloat16, around=emulated(step.model, step.device.type, run))


class RecipeLab(Lab):
    """The lab of one step: FP32 says what bf16 determines, bf16 what a recipe has to match."""

    def __init__(
        self,
        step: Step,
        baseline: Recipe,
        earlier: Sequence[Any] = (),
        other: Any = None,
        keep: Collection[str] = (),
    ) -> None:
        """Run the step in FP32 and in bf16.

        `earlier` are the batches that delayed scaling has seen before; an `other` one tells the noise of gradients.
        Modules of `keep` are never rounded.
        """
        super().__init__(step)
        self._keep = frozenset(keep)
        self._earlier, self._baseline = earlier, baseline
        self._memories: dict[str, Memory] = {}
        self._state = Snapshot(step.model, step.batch, step.loss, list(earlier))
        exact = self._grads
        run = Emulation(baseline, IN_BF16)
        try:
            self._loss = forward_and_backward(step, run)
            self._grads = dict(self._gradients())
        finally:
            self._state.restore()
        met = {layer.module: shape for layer, shape in run.layers.items()}
        self.layers = {name: shape for name, shape in met.items() if name not in self._keep}
        self.kept = tuple(name for name in met if name in self._keep)
        self.rows = {layer.module: rows for layer, rows in run.rows.items()}
        self.left = dict(run.left)
        self._work: dict[str, int] = {}
        for layer, products in run.work.items():
            self._work[layer.module] = self._work.get(layer.module, 0) + products
        self.undetermined = {
            name: error
            for name, error in self._errors(exact, self._grads).items()
            if not error < UNDETERMINED
        }
        self.noise: Mapping[str, float] = {}
        if other is not None:
            self.noise = self._noise(other)

    @property
    def loss(self) -> float:
        """Return the loss in bf16."""
        return float(self._loss)

    @property
    def judged(self) -> tuple[str, ...]:
        """Return the parameters whose gradient bf16 determines."""
        return tuple(name for name in self._grads if name not in self.undetermined)

    def share(self, modules: Sequence[str]) -> float:
        """Return the share of the linear layers' products that modules compute."""
        whole = sum(self._work.values())
        return sum(self._work.get(name, 0) for name in modules) / whole if whole else 0.0

    def _noise(self, batch: Any) -> dict[str, float]:
        """Return by how much gradients differ between two batches, as a share: the noise of one batch, by parameter."""
        self._state.restore()
        try:
            forward_and_backward(
                Step(self.step.model, batch, self.step.loss), Emulation(self._baseline, IN_BF16)
            )
            errors = self._errors(self._grads, dict(self._gradients()))
        finally:
            self._state.restore()
        return {name: error / 2**0.5 for name, error in errors.items() if name not in self.undetermined}

    def watched(self, recipe: Recipe) -> tuple[RecipeOutcome, tuple[OperandStats, ...]]:
        """Run the step under a recipe, and return what its casts were given, too."""
        recorder = OperandRecorder(recipe)
        outcome = self.outcome(recipe, recorder=recorder, exact=True)
        return outcome, recorder.read(self._memories.get(recipe.name, Memory()))

    def outcome(
        self,
        recipe: Recipe,
        kept: Kept = EVERYTHING,
        recorder: OperandRecorder | None = None,
        *,
        exact: bool = False,
    ) -> RecipeOutcome:
        """Run the step under a recipe; `exact` lets delayed scales settle with the very same places kept."""
        self.trials += 1
        kept = replace(kept, modules=kept.modules | self._keep)
        self._state.restore()  # another lab of the same model may have trained it
        try:
            memory = self._settled(recipe, kept, exact=exact) if recipe.delayed else Memory()
            run = Emulation(recipe, kept, memory, recorder)
            loss = forward_and_backward(self.step, run)
            errors = self._errors(self._grads, dict(self._gradients()))
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            raised = f"{type(error).__name__}: {error}"
            return RecipeOutcome(recipe.name, raised=raised, four_bit=recipe.four_bit)
        finally:
            self._state.restore()
        judged = {
            name: error / min(max(1.0, self.noise.get(name, 1.0)), MOST_NOISE)
            for name, error in errors.items()
            if name not in self.undetermined
        }
        return RecipeOutcome(recipe.name, judged, float(loss), four_bit=recipe.four_bit)

    def _settled(self, recipe: Recipe, kept: Kept, *, exact: bool) -> Memory:
        """Return the memory of delayed scaling before the step: of the batches before it, or of the same one."""
        known = self._memories.get(recipe.name)
        if known is not None and not exact:
            return known.copy()
        run = Emulation(recipe, kept)
        for batch in self._earlier or [self.step.batch] * SETTLING:
            forward_and_backward(Step(self.step.model, batch, self.step.loss), run)
            if not run.memory.end_step() and not self._earlier:
                break
        self._state.restore()
        if known is None:
            self._memories[recipe.name] = run.memory.copy()
        return run.memory

    def _errors(
        self, reference: Mapping[str, torch.Tensor], seen: Mapping[str, torch.Tensor]
    ) -> dict[str, float]:
        """Return the relative L2 error by parameter, infinite where a gradient is missing or not finite."""
        names = [name for name, grad in reference.items() if name in seen and seen[name].shape == grad.shape]
        errors = dict.fromkeys((name for name in reference if name not in names), float("inf"))
        if names:
            rows = torch.stack([comparison(reference[name], seen[name], 0) for name in names]).cpu().tolist()
            for name, (error, norm, bad, _, _) in zip(names, rows, strict=True):
                errors[name] = float("inf") if bad else (error / norm) ** 0.5 if norm else 0.0
        return errors
