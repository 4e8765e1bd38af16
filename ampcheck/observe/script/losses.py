"""What a loss is made of, read from its graph: whether it was scaled, and the operation behind it."""

from typing import Any

import torch

_MARK = "ampcheck.scaled"
#: Nodes behind a loss that are looked at.
_NEAR = 64
#: Constants from which on a loss is multiplied in order to scale it: its weight is seldom as large.
SMALLEST_SCALE = 32.0


def mark_scaled(loss: torch.Tensor) -> None:
    """Remember at its node that a loss has gone through a scaler; the mark goes when the graph goes."""
    if loss.grad_fn is not None:
        _notes(loss.grad_fn)[_MARK] = True


def is_scaled(loss: torch.Tensor) -> bool:
    """Tell whether a loss, or something just behind it, has gone through a scaler."""
    waiting, seen = [loss.grad_fn], 0
    while waiting and seen < _NEAR:
        node = waiting.pop(0)
        if node is None:
            continue
        seen += 1
        if _MARK in _notes(node):
            return True
        waiting += [after for after, _ in node.next_functions]
    return False


def behind(loss: Any) -> str:
    """Return the name of the operation that made a loss, before it was scaled: "DivBackward0"."""
    node = getattr(loss, "grad_fn", None)
    if node is None:
        return ""
    if _MARK in _notes(node) and node.name().startswith("MulBackward") and node.next_functions:
        node = node.next_functions[0][0] or node
    return str(node.name())


def by_hand(loss: Any) -> bool:
    """Tell whether a loss was last multiplied by a constant that is as large as a loss scale."""
    node = getattr(loss, "grad_fn", None)
    if node is None or not node.name().startswith("MulBackward"):
        return False
    return any(_constant(node, name) >= SMALLEST_SCALE for name in ("_saved_self", "_saved_other"))


def _constant(node: Any, name: str) -> float:
    """Return what a loss was multiplied by, 0 where that is no constant, or one that a GPU would be waited for."""
    try:
        saved = getattr(node, name, None)
    except RuntimeError:  # its graph was freed: torch will say so
        return 0.0
    if not isinstance(saved, torch.Tensor) or saved.numel() != 1 or not saved.is_cpu or saved.requires_grad:
        return 0.0
    with torch._C._DisableTorchDispatch():  # a recorder would be asked for it
        return float(saved)


def _notes(node: Any) -> dict[str, Any]:
    found: dict[str, Any] = node.metadata
    return found
