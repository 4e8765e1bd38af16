"""The memory of delayed scaling: the largest magnitudes of earlier steps, and the scales that follow from them."""

from dataclasses import dataclass, field

import torch

from ampcheck.observe.fp8.casts import delayed_scale
from ampcheck.values.recipes import Cast


@dataclass(slots=True)
class Slot:
    """One operand of one layer."""

    scale: torch.Tensor  #: 1 before anything was seen
    now: torch.Tensor  #: largest magnitude of the present step
    cast: Cast
    past: list[torch.Tensor] = field(default_factory=list)  #: of earlier steps

    def copy(self) -> "Slot":
        """Return a slot that goes on by itself."""
        return Slot(self.scale, self.now, self.cast, list(self.past))

    def end_step(self) -> None:
        """Let the step that ends decide on the scale of the next one."""
        history = self.cast.history
        assert history is not None
        if bool(self.now > 0):
            self.past = [*self.past, self.now][-history.length :]
        if self.past:
            amax = self.past[-1] if history.most_recent else torch.stack(self.past).amax(0)
            if bool(torch.isfinite(amax)):
                self.scale = delayed_scale(amax, self.cast)
        self.now = torch.zeros_like(self.now)


class Memory:
    """The slots of all operands, by layer and operand."""

    def __init__(self, slots: dict[tuple[object, str], Slot] | None = None) -> None:
        """Begin with nothing seen, or with what another memory holds."""
        self.slots = slots or {}

    def copy(self) -> "Memory":
        """Return a memory that goes on by itself."""
        return Memory({key: slot.copy() for key, slot in self.slots.items()})

    def scale(self, key: tuple[object, str], x: torch.Tensor, cast: Cast) -> torch.Tensor:
        """Return the scale for a tensor, and take note of the tensor's own largest magnitude."""
        if key not in self.slots:
            one = torch.ones((), device=x.device)
            self.slots[key] = Slot(one, torch.zeros_like(one), cast)
        slot = self.slots[key]
        slot.now = torch.maximum(slot.now, x.abs().amax())
        return slot.scale

    def end_step(self) -> bool:
        """End a step; tell whether any scale moved by more than one percent."""
        moved = False
        for slot in self.slots.values():
            before = slot.scale
            slot.end_step()
            moved |= not bool(((slot.scale - before).abs() <= 0.01 * before).all())
        return moved
