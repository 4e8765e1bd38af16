"""What an optimizer step does to weights held in half precision: which of its changes are rounded away."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.model.structure import named_modules, own_tensors
from ampcheck.observe.step import Step, Widened, casting_rules, clear_gradients
from ampcheck.values.trace import UpdateLoss

#: Steps taken: the first ones of Adam are as large as its learning rate, later ones smaller.
STEPS = 2
#: Times its change in FP32 from which on a change is wrong: rounding up gives at most twice as much.
TOO_FAR = 2.0
#: Makes the optimizer of a model; does what the user does to the model after each step.
Make = Callable[[Any], torch.optim.Optimizer]
After = Callable[[Any], object]


def lost_updates(step: Step, optimizer: Make, after_step: After | None) -> tuple[UpdateLoss, ...]:
    """Return, for each tensor held in half precision, how many elements FP32 would have changed and it did not."""
    held = {name for name, tensor in _state(step.model) if tensor.dtype in HALVES}
    if not held:
        return ()
    before = Snapshot(step.model, step.batch, step.loss)
    try:
        low = _changed(step, optimizer, after_step)
        before.restore()
        Widened(step.model, step.batch)
        wide = _changed(step, optimizer, after_step)
    finally:
        before.restore()
    return tuple(update_loss(name, wide[name], low[name]) for name in wide if name in held and name in low)


def _changed(step: Step, optimizer: Make, after_step: After | None) -> dict[str, torch.Tensor]:
    """Return by how much each element of each tensor differs after a few plain steps."""
    first = {name: tensor.detach().double() for name, tensor in _state(step.model)}
    updates = optimizer(step.model)
    for _ in range(STEPS):
        clear_gradients(step.model)
        with casting_rules(step.device, None), torch.enable_grad():
            step.loss(step.model, step.batch).backward()
        updates.step()
        if after_step is not None:
            after_step(step.model)
    return {name: tensor.detach().double() - first[name] for name, tensor in _state(step.model)}


def update_loss(name: str, wide: torch.Tensor, low: torch.Tensor) -> UpdateLoss:
    """Return what was lost of a tensor's change, given the one in FP32 and the one in low precision."""
    moves = ((wide != 0) | ~low.isfinite()) & wide.isfinite()
    infinite = ~low.isfinite()
    off = infinite | (low.abs() > TOO_FAR * wide.abs())
    kinds = (moves, moves & (low == 0), moves & off, moves & infinite)
    moved, stuck, wrong, bad = torch.stack([one.sum() for one in kinds]).tolist()
    return UpdateLoss(name, moved, stuck, wrong, infinite=bad)


def _state(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for path, module in named_modules(model):
        for name, tensor in own_tensors(module):
            if tensor.is_floating_point():
                yield f"{path}.{name}".lstrip("."), tensor
