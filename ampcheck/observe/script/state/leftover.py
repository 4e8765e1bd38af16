"""Gradients of a step that are still there when the next backward adds to them."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.script.recording import unseen

#: Parameters of an optimizer that are looked at.
MOST = 4
#: Looks at one optimizer: what a loop leaves behind, it leaves behind at its first steps.
MOST_LOOKS = 8


@dataclass(frozen=True, slots=True)
class _Held:
    """A gradient that is not zero, before a backward."""

    label: str
    parameter: Any  #: weak
    grad: int
    version: int


class Leftovers:
    """Follows the gradients that a scaler has divided and stepped, and that nobody has cleared."""

    def __init__(self) -> None:
        self._left: dict[str, list[Any]] = {}
        self._looks: dict[str, int] = {}
        self._held: list[_Held] = []

    def stepped(self, label: str, parameters: Iterable[Any]) -> None:
        """Remember whose gradients were used."""
        held = [one for one in parameters if isinstance(one, torch.Tensor) and one.grad is not None]
        self._left[label] = [weakref.ref(one) for one in held[:MOST]]

    def zeroed(self, label: str) -> None:
        """Forget those of an optimizer, or of all where a model clears its own."""
        if label.startswith("optimizer"):
            self._left.pop(label, None)
        else:
            self._left.clear()

    def backward_begins(self) -> None:
        """Look at what is there before a backward adds to it."""
        self._held = [one for label in self._left for one in self._looked_at(label)]

    def _looked_at(self, label: str) -> list[_Held]:
        self._looks[label] = self._looks.get(label, 0) + 1
        if self._looks[label] > MOST_LOOKS:
            return []
        found = []
        with unseen():
            for parameter in self._left[label]:
                held = parameter()
                grad = None if held is None else gradient_of(held)
                if grad is not None and bool((grad != 0).any()):
                    found.append(_Held(label, parameter, id(grad), grad._version))
        return found

    def backward_ends(self) -> tuple[str, ...]:
        """Return the optimizers whose gradients the backward has added to."""
        held, self._held = self._held, []
        return tuple(sorted({one.label for one in held if _grown(one)}))


def _grown(one: _Held) -> bool:
    held = one.parameter()
    grad = None if held is None else gradient_of(held)
    return grad is not None and (id(grad), grad._version) != (one.grad, one.version)
