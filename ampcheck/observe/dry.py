"""A step without memory and without numbers: which dtype autocast gives each operation, and what it casts.

The tensors are torch's fake ones: they have a shape, a dtype and a device, and operations on them, autocast and
the backward run for these alone.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ampcheck.observe.model.modules import tensors_in
from ampcheck.observe.modes import Way
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.seen import Seen
from ampcheck.observe.statistics.step_record import StepRecord
from ampcheck.observe.tally import Origin, Tally
from ampcheck.values.trace import Phase, Site

_NO_ROW = 0


class _Headings(StepRecord):
    """Sites and casts, and no numbers."""

    def keep_loss(self, loss: torch.Tensor) -> None:
        """Keep nothing: this loss has no value."""


class _Shapes(Tally):
    """Counts the elements of results that hold none."""

    def __init__(self, step_record: StepRecord, seen: Seen) -> None:
        super().__init__(step_record, seen, follow=False)
        self.elements: dict[int, int] = {}

    def measure(self, origin: Origin, phase: Phase, op: str, slot: str, tensor: torch.Tensor) -> None:
        """Add a result's elements to its site."""
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return
        if op or phase is Phase.STATE:
            dtype = str(tensor.dtype).removeprefix("torch.")
            number = self.number(origin, (op, slot, phase, dtype))
            self.elements[number] = self.elements.get(number, 0) + tensor.numel()
        self._seen.remember(tensor, _NO_ROW)

    def measure_all(self, held: Iterable[tuple[Origin, str, torch.Tensor]]) -> None:
        """Add the elements of parameters and gradients to their sites."""
        for origin, slot, tensor in held:
            self.measure(origin, Phase.STATE, "", slot, tensor)

    def _measure_unusual(self, *where: Any) -> None:
        self.measure(*where)

    def crossed(self, origin: Origin, slot: str, value: Any) -> None:
        """Note the tensors that enter or leave a module, so that a copy of one is no new result."""
        for place, tensor in tensors_in(value, slot):
            if not self.known(tensor):
                self.measure(origin, Phase.FORWARD, "", place, tensor)


class DryRecorder(Recorder):
    """Records operations on fake tensors: dtypes, elements and casts."""

    plain = frozenset({torch.Tensor, FakeTensor})

    def __init__(self, model: Any) -> None:
        super().__init__(model, compiled=False)
        self.step_record = _Headings()
        self.tally = self._shapes = _Shapes(self.step_record, Seen())
        self._measure, self._inherit, self._copied = (
            self.tally.measure,
            self.tally.inherit,
            self.tally.copied,
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and note its result's dtype; a fake tensor's device is asked for as an operation too."""
        if func is torch.ops.prim.device.default:
            return func(*args)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def way(self, types: Any) -> Way:
        """Return what is to become of an operation on a subclass other than that of fake tensors."""
        others = [kind for kind in types if kind is not FakeTensor]
        return super().way(others) if others else Way.RECORDED

    def elements(self) -> dict[Site, int]:
        """Return the elements of the results by site, in order of execution."""
        names = self.step_record.names()
        return {names[number]: count for number, count in self._shapes.elements.items()}
