"""What a loss is made of, read from its graph: whether it was scaled, and the operation behind it."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

_MARK = "ampcheck.scaled"
#: Nodes behind a loss that are looked at.
_NEAR = 64
#: Nodes that may hand on what a loss is multiplied by.
_MULTIPLY = ("MulBackward", "DivBackward", "ToCopyBackward", "AddBackward")
#: Constants from which on a loss is multiplied in order to scale it: its weight is seldom as large.
SMALLEST_SCALE = 32.0
#: What has gone through a scaler and has no graph, as a scale that losses are multiplied by later.
_SCALES = WeakIdKeyDictionary()


def mark_scaled(loss: torch.Tensor) -> None:
    """Remember at its node that a loss has gone through a scaler; the mark goes when the graph goes."""
    if loss.grad_fn is None:
        _SCALES[loss] = True
    else:
        _notes(loss.grad_fn)[_MARK] = True


def is_scaled(loss: torch.Tensor) -> bool:
    """Tell whether a loss, or something just behind it, has gone through a scaler."""
    waiting, seen = [loss.grad_fn], 0
    while waiting and seen < _NEAR:
        node = waiting.pop(0)
        if node is None:
            continue
        seen += 1
        if _MARK in _notes(node) or (_SCALES and _multiplies_by_scale(node)):
            return True
        waiting += [after for after, _ in node.next_functions]
    return False


def _multiplies_by_scale(node: Any) -> bool:
    if not node.name().startswith("MulBackward"):
        return False
    try:
        saved = getattr(node, "_saved_other", None), getattr(node, "_saved_self", None)
    except RuntimeError:  # its graph was freed: torch will say so
        return False
    return any(isinstance(one, torch.Tensor) and one in _SCALES for one in saved)


def behind(loss: Any) -> str:
    """Return the name of the operation that made a loss, before it was scaled: "DivBackward0"."""
    node = getattr(loss, "grad_fn", None)
    if node is None:
        return ""
    if _MARK in _notes(node) and node.name().startswith("MulBackward") and node.next_functions:
        node = node.next_functions[0][0] or node
    return str(node.name())


def factor(loss: Any, seed: Any = None) -> float:
    """Return by what constant a loss is multiplied before its backward; 1 where none is known.

    That is what it starts from, and the products that made it last, up to the first that is as large as a scale: behind
    it the loss may have weights of its own. A sum is multiplied by what each of its terms is.
    """
    node, begins = getattr(loss, "grad_fn", None), number_of(seed) or 1.0
    multiplied = node is not None and node.name().startswith(_MULTIPLY)  # most losses are not
    return abs(_product(node, begins, [_NEAR]) if multiplied else begins)


def _product(node: Any, product: float, left: list[int]) -> float:
    """Return a product times what a node and those behind it multiply by; few are `left` to be looked at."""
    while abs(product) < SMALLEST_SCALE and left[0] > 0:
        left[0] -= 1
        if node is not None and node.name().startswith("AddBackward"):
            behind_it = [after for after, _ in node.next_functions if after is not None]
            found = {_product(after, product, left) for after in behind_it}
            return found.pop() if len(found) == 1 and node._saved_alpha == 1 else product
        constant = _constant(node)
        if not constant:
            break
        product *= constant
        node = node.next_functions[0][0] or node.next_functions[-1][0]
    return product


def _constant(node: Any) -> float:
    """Return what a node multiplies a gradient by; 0: no constant, or one that a GPU would be waited for."""
    name = "" if node is None else node.name()
    if name.startswith("ToCopyBackward"):
        return 1.0
    if not name.startswith(("MulBackward", "DivBackward")):
        return 0.0
    try:
        other, mine = getattr(node, "_saved_other", None), getattr(node, "_saved_self", None)
    except RuntimeError:  # its graph was freed: torch will say so
        return 0.0
    if name.startswith("Div"):
        found = number_of(other)
        return 1.0 / found if found else 0.0
    return number_of(other) or number_of(mine)


def number_of(saved: Any) -> float:
    """Return the number that something is; 0 where it is none, or one that a GPU would be waited for."""
    if isinstance(saved, (int, float)):
        return float(saved)
    if not isinstance(saved, torch.Tensor) or saved.numel() != 1 or not saved.is_cpu or saved.requires_grad:
        return 0.0
    with torch._C._DisableTorchDispatch():  # a recorder would be asked for it
        return float(saved)


def _notes(node: Any) -> dict[str, Any]:
    found: dict[str, Any] = node.metadata
    return found


def leaves_of(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield every tensor that the backward of a loss leaves a gradient in."""
    waiting: list[Any] = [loss.grad_fn]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            yield variable
        waiting += [after for after, _ in node.next_functions]


def leaves(loss: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors with a gradient that are behind a loss, the one that is read first before the others.

    That one tells one loss from another, also where the one goes through the other's model, or a model leaves layers
    out.
    """
    waiting: list[Any] = [loss.grad_fn]
    seen, found = set(), dict[int, tuple[int, torch.Tensor]]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for after, _ in node.next_functions:
            variable = getattr(after, "variable", None)
            if isinstance(variable, torch.Tensor):
                read = node._sequence_nr(), variable
                found[id(variable)] = min(found.get(id(variable), read), read, key=lambda one: one[0])
            waiting.append(after)
    return [variable for _, variable in sorted(found.values(), key=lambda one: one[0])]
