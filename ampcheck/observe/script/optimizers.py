"""What is asked of an optimizer, and which of several have had their turn: a recording lasts until all have."""

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ampcheck.observe.script.journal import dtype_name

#: Steps after which an optimizer that has taken none of them is no longer waited for.
_MOST_BETWEEN = 8


def labels_of(parameters: Iterable[torch.Tensor], owners: Mapping[int, str]) -> tuple[str, ...]:
    """Return the labels of the optimizers that hold some of the parameters."""
    return tuple(sorted({owners.get(id(parameter), "") for parameter in parameters} - {""}))


def parameters_of(optimizer: Any) -> list[Any]:
    """Return what it updates."""
    return [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]


def have_gradients(parameters: Iterable[Any]) -> bool:
    """Tell whether any of them has a gradient."""
    with torch._C.DisableTorchFunction():
        return any(isinstance(one, torch.Tensor) and one.grad is not None for one in parameters)


def described(optimizer: Any) -> dict[str, str | float | bool]:
    """Return what rules ask of an optimizer: the dtypes it updates, whether it is fused, and its smallest eps."""
    dtypes = {dtype_name(p.dtype) for p in parameters_of(optimizer) if isinstance(p, torch.Tensor)}
    fused = any(bool(group.get("fused")) for group in optimizer.param_groups)
    eps = [group["eps"] for group in optimizer.param_groups if isinstance(group.get("eps"), float)]
    found: dict[str, str | float | bool] = {"dtypes": " ".join(sorted(dtypes)), "fused": fused}
    return found | ({"eps": min(eps)} if eps else {})


class Turns:
    """Which optimizers there are, and which have stepped since all of them last had."""

    def __init__(self) -> None:
        #: By label: the optimizer, and the step that was its last, or before which it was first seen.
        self._last: dict[str, tuple[weakref.ref[Any], int]] = {}
        self._stepped: set[str] = set()  #: ever
        self._taken: set[str] = set()

    @property
    def count(self) -> int:
        """Return how many optimizers there are."""
        return sum(known() is not None for known, _ in self._last.values())

    def parameters(self) -> list[Any]:
        """Return what the optimizers update that are still there."""
        held = [known() for known, _ in self._last.values()]
        return [parameter for optimizer in held for parameter in parameters_of(optimizer)]

    @property
    def fresh(self) -> bool:
        """Tell whether the turn is the first one's again."""
        return not self._taken

    def is_new(self, label: str, optimizer: Any, step: int) -> bool:
        """Take note of an optimizer; tell whether it was not known."""
        new = label not in self._last
        self._last.setdefault(label, (weakref.ref(optimizer), step))
        return new

    def waits_for_others(self, label: str, step: int) -> bool:
        """Tell whether others have yet to step besides the one that is about to; '' stands for none."""
        return len(self._last) > 1 and bool(self._waited_for(step) - self._taken - {label})

    def taken(self, label: str, step: int) -> None:
        """Take note of a step."""
        if label in self._last:
            if label not in self._stepped:  # those before it had their turn when it was not known yet
                self._taken |= self._stepped
                self._stepped.add(label)
            self._last[label] = (self._last[label][0], step)
            self._taken.add(label)
            if self._waited_for(step) <= self._taken:
                self._taken.clear()

    def end(self) -> None:
        """Forget all: these do not step in turn."""
        self._last.clear()
        self._taken.clear()

    def _waited_for(self, step: int) -> set[str]:
        recent = step - _MOST_BETWEEN
        return {label for label, (held, at) in self._last.items() if at > recent and held() is not None}
