"""Half-precision numbers from before the step, moved by as much as rounding may have moved them.

What they were before is gone. So each is moved at random, by up to half a unit in its last place: gradients that depend
on that depend on what rounding has lost. Numbers on a grid of few bits were exact from the start.
"""

from collections.abc import Callable, Iterable

import torch

from ampcheck.observe.reference.given import Given
from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.statistics.units import GRIDS, is_grid, unit_of

#: Elements of a storage that are moved as a whole; of a larger one only what is read.
_WHOLE = 2**24


class Moved(Given):
    """Gives a run beside the script other numbers than those that it finds."""

    def __init__(self, shadow: Shadow, weights: Callable[[], Iterable[torch.Tensor]]) -> None:
        super().__init__(weights, lambda _: "")
        self._shadow = shadow
        self._draws: dict[torch.device, torch.Generator] = {}

    def _computes_with(self, tensor: torch.Tensor) -> None:
        whole = tensor
        if tensor.untyped_storage().nbytes() <= _WHOLE * tensor.element_size():
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            whole = tensor.detach().as_strided((size,), (1,), 0)
        if not is_grid(whole, GRIDS[tensor.dtype]):
            self._shadow.replace(
                whole, whole.float() + self._part(whole.shape, tensor.device) * unit_of(whole)
            )

    def _part(self, shape: torch.Size, device: torch.device) -> torch.Tensor:
        """Return parts of a unit, from -0.5 to 0.5; the script's random numbers stay its own."""
        draws = self._draws.setdefault(device, torch.Generator(device).manual_seed(0))
        return torch.rand(shape, generator=draws, device=device) - 0.5
