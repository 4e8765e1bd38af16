"""Which parameters the optimizers of a script have stepped, and whose gradients were compared with FP32."""

import weakref
from collections.abc import Callable, Iterable

import torch

from ampcheck.observe.script.state.naming import Named


class Trained:
    """The parameters that were stepped: those with a gradient when their optimizer stepped."""

    def __init__(self, named: Named, know: Callable[..., None]) -> None:
        """Begin with none; `named` says what a parameter is called, and `know` hears of those that are new."""
        self._named, self._know = named, know
        #: By optimizer, without a gradient so far.
        self._idle: dict[str, list[weakref.ref[torch.Tensor]]] = {}
        self._known: dict[str, int] = {}  #: by optimizer, how many parameters it had
        self._names: dict[int, tuple[str, int]] = {}
        #: What optimizers had, also those that are gone.
        self._held: dict[int, weakref.ref[torch.Tensor]] = {}

    def stepped(self, optimizer: str, parameters: Iterable[torch.Tensor]) -> None:
        """Take note of an optimizer that is about to change parameters."""
        held = list(parameters)
        if self._known.get(optimizer) != len(held):
            self._known[optimizer] = len(held)
            self._know(held, quickly=True)
            self._idle[optimizer] = [weakref.ref(parameter) for parameter in held]
            self._held.update((id(parameter), weakref.ref(parameter)) for parameter in held)
        if self._idle[optimizer]:
            self._idle[optimizer] = [ref for ref in self._idle[optimizer] if not self._has_gradient(ref())]

    def _has_gradient(self, parameter: torch.Tensor | None) -> bool:
        if parameter is None or parameter.grad is None:
            return False
        self._names[id(parameter)] = (self._named(parameter)[1].lstrip("."), parameter.numel())
        return True

    def __contains__(self, tensor: object) -> bool:
        """Tell whether an optimizer that stepped had a tensor."""
        held = self._held.get(id(tensor))
        return held is not None and held() is tensor

    def elements(self, others_than: Iterable[int] = ()) -> dict[str, int]:
        """Return the elements of the stepped parameters by name, but for some that are named by identity."""
        left_out = set(others_than)
        found: dict[str, int] = {}
        for key, (name, size) in self._names.items():
            if key not in left_out:
                found[name] = found.get(name, 0) + size
        return found

    def __len__(self) -> int:
        """Return how many parameters were stepped."""
        return len(self._names)
