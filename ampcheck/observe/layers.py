"""A recorder of whole modules: what goes in, what comes out and its gradient, and no operation in between."""

import functools
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from ampcheck.observe.execution import run_op
from ampcheck.observe.model.modules import tensors_in
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.tally import BACKWARD_OP, FORWARD_OP
from ampcheck.values.trace import Phase, Trace

#: What a trace of this kind says it did not see.
LAYERS_ONLY = "operations inside modules: only what enters and leaves modules was measured (layers only)"


class LayerRecorder(Recorder):
    """Records module calls through hooks, at a fraction of the cost of all operations.

    What a module makes stands for the result of one operation, "forward" of it; a tensor that a module only
    hands on is no result of it. Gradients arrive by hooks on those tensors, which go when the recording ends.
    """

    layers = True

    def __init__(self, model: Any, **options: Any) -> None:
        """Prepare as a recorder does; `execute` still runs the operations, unseen."""
        super().__init__(model, **options)
        self._hooks: list[Any] = []
        self._results = 0
        self._running = ExitStack()

    def _begin(self) -> None:
        mode: AbstractContextManager[Any] | None = None if self.execute is run_op else WideCompute()
        if mode is not None:
            self._running.enter_context(mode)

    def _end(self) -> None:
        self._running.close()
        while self._hooks:
            self._hooks.pop().remove()

    def crossed(self, module: int, slot: str, value: Any) -> None:
        """Note the tensors that enter or leave a module; measure what it made as its result."""
        for place, tensor in tensors_in(value, slot):
            numbers = tensor.is_floating_point() or tensor.is_complex()
            if numbers and slot.startswith("output") and not self.tally.known(tensor):
                self.tally.measure_outside(
                    self.origins.door(module), Phase.FORWARD, FORWARD_OP, place, tensor
                )
                self._follow(module, place, tensor)
            self.tally.crossed(self.origins.door(module), place, tensor)

    def follow_gradient(self, module: int, place: int, result: torch.Tensor) -> None:
        """Measure the gradient of a result of a module, by its place among them, when it arrives."""
        self._results += 1
        if result.requires_grad and self.path is not None:
            self._hooks.append(result.register_hook(functools.partial(self.path.gradient, module, place)))

    def gradient(self, module: int, place: int, grad: torch.Tensor | None) -> None:
        """Measure a gradient that C cannot read."""
        self._gradient(module, "output" if place < 0 else f"output[{place}]", grad)

    def _follow(self, module: int, slot: str, result: torch.Tensor) -> None:
        self._results += 1
        if result.requires_grad:
            self._hooks.append(result.register_hook(functools.partial(self._gradient, module, slot)))

    def _gradient(self, module: int, slot: str, grad: torch.Tensor | None) -> None:
        if grad is None:  # of a result that nothing uses, where another one of the same operation is used
            return
        self.tally.measure_outside(self.origins.door(module), Phase.BACKWARD, BACKWARD_OP, slot, grad)

    def trace(self, fetched: Any) -> Trace:
        """Return the trace of what was recorded; it says what it has not seen."""
        found = super().trace(fetched)
        found.not_audited[LAYERS_ONLY] = self._results  # type: ignore[index]  # a dictionary of its own
        return found
