"""The backward pass, run node by node from Python.

Torch's engine asks the CUDA driver which streams a gradient lives on, so it cannot run where there is none.
The nodes themselves can be called. What the engine does around them is here: order, sums, shapes, dtypes.
"""

import heapq
import itertools
from typing import Any

import torch


@torch.no_grad()
def backward(root: torch.Tensor) -> None:
    """Call every node of the graph of `root` as torch's engine would, but store no gradient."""
    waiting = _uses(root.grad_fn)
    received: dict[Any, list[torch.Tensor | None]] = {root.grad_fn: [torch.ones_like(root)]}
    arrival = itertools.count()
    # Nodes made last come first; of equals, the one that was ready first.
    ready = [(-root.grad_fn._sequence_nr(), next(arrival), root.grad_fn)]
    while ready:
        _, _, node = heapq.heappop(ready)
        grads = received.pop(node)
        if type(node).__name__ == "AccumulateGrad":
            continue
        for (successor, slot), grad in zip(node.next_functions, _called(node, grads), strict=False):
            if successor is None:
                continue
            _receive(received, successor, slot, grad)
            waiting[successor] -= 1
            if not waiting[successor]:
                heapq.heappush(ready, (-successor._sequence_nr(), next(arrival), successor))


def _uses(start: Any) -> dict[Any, int]:
    """Return for each node how many nodes will hand it a gradient."""
    count: dict[Any, int] = {}
    seen, stack = {start}, [start]
    while stack:
        for successor, _ in stack.pop().next_functions:
            if successor is None:
                continue
            count[successor] = count.get(successor, 0) + 1
            if successor not in seen:
                seen.add(successor)
                stack.append(successor)
    return count


def _called(node: Any, grads: list[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    python = isinstance(node, torch.autograd.function.BackwardCFunction)
    out = node.apply(*grads) if python else node(*grads)
    return out if isinstance(out, tuple) else (out,)


def _receive(received: dict[Any, Any], node: Any, slot: int, grad: torch.Tensor | None) -> None:
    """Add a gradient to what `node` has got, in the shape and dtype of the value it belongs to."""
    expected = node._input_metadata
    slots = received.setdefault(node, [None] * len(expected))
    if grad is None:
        return
    if tuple(grad.shape) != tuple(expected[slot].shape):
        grad = grad.sum_to_size(expected[slot].shape)
    if grad.dtype != expected[slot].dtype:
        grad = grad.to(expected[slot].dtype)
    slots[slot] = grad if slots[slot] is None else slots[slot] + grad
