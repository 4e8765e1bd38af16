"""CUDA graphs: forward and backward of a step captured once, and replayed without a launch for each kernel."""

from collections.abc import Callable
from typing import Any

import torch

from ampcheck.targets.nested import mapped, tensors

#: Steps before the capture: lazy buffers and the choice of kernels must not fall into it.
WARM_UP = 3


class CapturedStep:
    """Forward and backward on a batch that stays at one place; gradients come out where they came out first."""

    def __init__(self, step: Callable[[Any], torch.Tensor], batch: Any, parameters: list[Any]) -> None:
        """Capture `step`, which clears the gradients, computes the loss of a batch, and runs its backward."""
        self._batch = mapped(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, batch)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step(self._batch)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = step(self._batch)
        self._gradients = [(parameter, parameter.grad) for parameter in parameters]

    def replay(self, batch: Any) -> torch.Tensor:
        """Return the loss of a batch, its gradients in place."""
        for mine, new in zip(tensors(self._batch), tensors(batch), strict=True):
            mine.copy_(new)
        self._graph.replay()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        return self._loss
