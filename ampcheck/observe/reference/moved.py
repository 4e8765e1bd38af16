"""Half-precision numbers from before the step, moved by as much as rounding may have moved them.

What they were before is gone. So each is moved at random, by up to half a unit in its last place: gradients that depend
on that depend on what rounding has lost. Numbers on a grid of few bits were exact from the start. Whole numbers that
become integers, as ids do, were others of their kind.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ampcheck.observe.reference.effects import Effects
from ampcheck.observe.reference.given import Given
from ampcheck.observe.reference.picks import CONVERTS
from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.statistics.units import GRIDS, is_grid, last_bit, unit_of, whole

_INTEGERS = frozenset({torch.int64, torch.int32})


class Moved(Given):
    """Gives a run beside the script other numbers than those that it finds."""

    def __init__(self, shadow: Shadow, weights: Callable[[], Iterable[torch.Tensor]]) -> None:
        super().__init__(weights, lambda _: "")
        self._shadow = shadow
        self._draws: dict[torch.device, torch.Generator] = {}
        self._whole: torch.Tensor | None = None  #: what is about to be turned into integers

    def read(
        self, rule: Effects, values: Iterable[Any], targets: list[torch.Tensor], known: Callable[..., Any]
    ) -> bool:
        """Move what an operation reads; tell whether its results hold the same numbers elsewhere."""
        given = list(values)
        self._whole = None
        if rule.name == CONVERTS and any(value in _INTEGERS for value in given[1:]):
            self._whole = given[0] if self._is_old(given[0], known) else None
            return False
        return super().read(rule, given, targets, known)

    def integers(self, out: torch.Tensor) -> torch.Tensor | None:
        """Return the integers that might have come of an operation instead; None where they are as they were."""
        ids, self._whole = self._whole, None
        if ids is None or not bool((ids.isfinite() & (ids == ids.round())).all()):
            return None
        grid, apart = last_bit(ids), unit_of(ids)
        if grid == 0 or float(apart.max()) <= grid:
            return None
        moved = (self._part(ids.shape, ids.device) * apart / grid).round() * grid
        return (out + moved.to(out.dtype)).clamp(out.min(), out.max())

    def _computes_with(self, tensor: torch.Tensor) -> None:
        numbers = whole(tensor.detach())
        if not is_grid(numbers, GRIDS[tensor.dtype]):
            parts = self._part(numbers.shape, tensor.device)
            self._shadow.replace(numbers, numbers.float() + parts * unit_of(numbers))

    def _part(self, shape: torch.Size, device: torch.device) -> torch.Tensor:
        """Return parts of a unit, from -0.5 to 0.5; the script's random numbers stay its own."""
        draws = self._draws.setdefault(device, torch.Generator(device).manual_seed(0))
        return torch.rand(shape, generator=draws, device=device) - 0.5
