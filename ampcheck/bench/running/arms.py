"""An arm: one precision's own model, optimizer and scaler, and the step they take together."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ampcheck.bench.running.graphs import CapturedStep
from ampcheck.bench.running.precisions import Precision, as_it_is
from ampcheck.observe.model.structure import named_parameters
from ampcheck.observe.step import Step, clear_gradients, users_code
from ampcheck.targets.spec import Target

Rules = Callable[[torch.device, Precision, Any], AbstractContextManager[None]]

#: Updates in a row that have to be applied before a scaler counts as settled, and tries until it has failed.
APPLIED_IN_A_ROW = 5
PATIENCE = 40


@dataclass(frozen=True, slots=True)
class Settled:
    """How a scaler came to rest."""

    ok: bool
    skipped: int
    scale: float


class Arm:
    """Takes training steps or inferences in one precision; nothing is shared with another arm."""

    def __init__(
        self,
        target: Target,
        chosen: Precision,
        rules: Rules = as_it_is,
        clip: float | None = None,
        *,
        graphed: bool = False,
    ) -> None:
        """Build the optimizer and the scaler; a target is taken over, its model trained in place.

        With `graphed` forward and backward are captured as a CUDA graph at the first step.
        """
        target = chosen.held(target)
        self.target, self.precision, self.clip = target, chosen, clip
        self.device = Step(target.model, None, target.loss).device
        self._rules = rules
        self.parameters = [parameter for _, _, parameter in named_parameters(target.model)]
        self.optimizer = optimizer_of(target, target.model)
        self.scaler = chosen.scaler(self.device.type)
        self._taken = self._applied = 0
        self._graphed = graphed
        self._captured: CapturedStep | None = None
        self.optimizer.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self._applied += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        """Set up what holds for a whole block of steps: rules, flags, a plan's places."""
        with self.target.active(), users_code(), self._rules(self.device, self.precision, self.target.model):
            yield

    def train(self) -> torch.Tensor:
        """Take one training step; return the loss, unscaled."""
        loss = self._replayed() if self._graphed else self._backward()
        self.update()
        return loss

    def _backward(self, batch: Any = None) -> torch.Tensor:
        loss = self.forward(batch)
        self.scaler.scale(loss).backward()
        return loss

    def _replayed(self) -> torch.Tensor:
        batch = self.target.batch(self._taken)
        self._captured = self._captured or CapturedStep(self._backward, batch, self.parameters)
        self._taken += 1
        return self._captured.replay(batch)

    def forward(self, batch: Any = None) -> torch.Tensor:
        """Return the loss of the next batch; the gradients of the step before are gone first."""
        clear_gradients(self.target.model)
        chosen = self.target.batch(self._taken) if batch is None else batch
        self._taken += batch is None
        with self.precision.region(self.device.type):
            loss: torch.Tensor = self.target.loss(self.target.model, chosen)
        return loss

    def update(self) -> None:
        """Clip, unless nothing is to be clipped, and update the weights through the scaler."""
        if self.clip is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.target.after_step is not None:
            self.target.after_step(self.target.model)

    def infer(self, batch: Any = None) -> torch.Tensor:
        """Return the loss of the next batch without gradients."""
        with torch.no_grad():
            return self.forward(batch)

    def settle(self, wanted: int = APPLIED_IN_A_ROW) -> Settled:
        """Train until so many updates in a row were applied, so that what follows is made of real steps."""
        skipped = in_a_row = 0
        for _ in range(PATIENCE):
            before = self.applied
            self.train()
            lost = self.scaler.is_enabled() and self.applied == before
            skipped += lost
            in_a_row = 0 if lost else in_a_row + 1
            if in_a_row == wanted or not self.scaler.is_enabled():
                break
        rested = in_a_row == wanted or not self.scaler.is_enabled()
        return Settled(rested, skipped, self.scaler.get_scale())

    @property
    def applied(self) -> int:
        """Return how many updates the optimizer has made; reading it on a GPU may wait for the GPU."""
        if not getattr(self.optimizer, "_step_supports_amp_scaling", False):
            return self._applied
        # A fused optimizer is called for every update and skips inside its kernel, where it does not count.
        steps = (state.get("step") for state in self.optimizer.state.values())
        return max((int(step) for step in steps if step is not None), default=0)

    def held(self) -> list[torch.Tensor]:
        """Return what stays between steps: parameters, buffers, optimizer state."""
        found = {id(parameter): parameter for parameter in self.parameters}
        found |= {id(tensor): tensor for tensor in buffers(self.target.model)}
        found |= {id(tensor): tensor for tensor in optimizer_state(self.optimizer)}
        return [getattr(tensor, "to_local", lambda kept=tensor: kept)() for tensor in found.values()]


def optimizer_of(target: Target, model: Any) -> torch.optim.Optimizer:
    """Return the target's optimizer for a model; AdamW where it has none."""
    if target.optimizer is not None:
        with users_code():
            return target.optimizer(model)
    return torch.optim.AdamW([parameter for _, _, parameter in named_parameters(model)])


def rebound(target: Target, pairs: Sequence[tuple[Any, Any]]) -> Target:
    """Return a target whose optimizer has the second of each pair of parameters in the place of the first.

    A file that makes its optimizer itself has made it of the parameters that there were then.
    """
    make = target.optimizer
    return target if make is None else replace(target, optimizer=partial(_rebound, make, pairs))


def _rebound(make: Callable[[Any], Any], pairs: Sequence[tuple[Any, Any]], model: Any) -> Any:
    optimizer = make(model)
    others = {id(one): other for one, other in pairs}
    for group in optimizer.param_groups:
        group["params"] = [others.get(id(one), one) for one in group["params"]]
    return optimizer


def buffers(model: Any) -> Iterator[torch.Tensor]:
    """Yield the buffers of a model."""
    from ampcheck.observe.model.structure import modules

    for module in modules(model):
        table = module.__dict__.get("_buffers") or {}
        yield from (tensor for tensor in table.values() if tensor is not None)


def optimizer_state(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the tensors an optimizer keeps."""
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))
