"""Stored numbers that a cast ruins by itself: parameters, buffers and inputs, each proved by a run in FP32."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ampcheck.fix.search import Search
from ampcheck.inference.casting import inputs_of, named_inputs, named_state
from ampcheck.inference.lab import ForwardLab
from ampcheck.targets.nested import tensors
from ampcheck.values.outcome import Outcome
from ampcheck.values.trace import Stored

#: Dimensions of a weight that everything is multiplied by.
_MATRIX = 2


@dataclass(frozen=True, slots=True)
class Culprits:
    """What a run in FP32 with nothing but these cast has shown to do harm."""

    stored: tuple[Stored, ...] = ()
    inputs: tuple[str, ...] = ()

    @property
    def owners(self) -> tuple[str, ...]:
        """Return the modules that own the stored numbers; the root cannot be kept alone."""
        names = (one.name.rpartition(".")[0] for one in self.stored if one.kind != "input")
        return tuple(dict.fromkeys(name for name in names if name))


def ruined(lab: ForwardLab, dtype: torch.dtype, rounded: Outcome) -> Culprits:
    """Return the stored numbers and inputs whose cast alone does harm."""

    def none(*_: object) -> bool:
        return False

    def harms(outcome: Outcome) -> bool:
        return outcome.harmed and not outcome.magnifies(rounded)

    inputs: tuple[str, ...] = ()
    floats = list(dict.fromkeys(n for b in lab.subject.batches for n in inputs_of(b, lab.subject.names)))
    if floats and harms(lab.rounded(dtype, none, floats)):
        single = (name for name in floats if harms(lab.rounded(dtype, none, [name])))
        inputs = tuple(single) or tuple(floats)
    measured = _measured(lab, dtype)
    chosen = _search(lab, dtype, measured, harms)
    shown = [one for one in measured if one.name in chosen]
    shown += [_of_input(lab, name, dtype) for name in inputs]
    return Culprits(tuple(shown), inputs)


def is_matrix(_name: str, tensor: torch.Tensor, buffer: bool) -> bool:  # noqa: FBT001
    """Tell whether a stored tensor is a weight that everything is multiplied by; vectors are cheap to keep."""
    return not buffer and tensor.ndim >= _MATRIX


def _search(
    lab: ForwardLab, dtype: torch.dtype, measured: list[Stored], harms: Callable[[Outcome], bool]
) -> frozenset[str]:
    """Return the fewest names whose cast alone does harm: buffers, vectors, and whatever loses numbers."""
    vectors = {name for name, tensor, _ in named_state(lab.subject.model) if tensor.ndim < _MATRIX}
    suspected = [
        one.name
        for one in measured
        if one.kind == "buffer" or one.name in vectors or one.infinite or one.underflowed
    ]

    def alone(names: tuple[str, ...]) -> bool:
        wanted = frozenset(names)
        return harms(lab.rounded(dtype, lambda name, *_: name in wanted))

    if not suspected or not alone(tuple(suspected)):
        return frozenset()
    return frozenset(Search(alone).run(suspected).items)


def _measured(lab: ForwardLab, dtype: torch.dtype) -> list[Stored]:
    """Return what a cast does to each parameter and buffer, the worst first."""
    found = [
        _row(name, tensor, dtype, "buffer" if buffer else "parameter")
        for name, tensor, buffer in named_state(lab.subject.model)
        if tensor.dtype.itemsize > dtype.itemsize and tensor.numel()
    ]
    return sorted(found, key=lambda one: (-one.infinite, -one.underflowed, -one.error))


def _of_input(lab: ForwardLab, name: str, dtype: torch.dtype) -> Stored:
    rows = []
    for batch in lab.subject.batches:
        known = named_inputs(batch, lab.subject.names)
        rows += [_row(name, t, dtype, "input") for t in tensors(known.get(name)) if t.is_floating_point()]
    return max(rows, key=lambda one: (one.infinite, one.error))


def _row(name: str, tensor: torch.Tensor, dtype: torch.dtype, kind: str) -> Stored:
    wide = tensor.detach().double()
    low = tensor.detach().to(dtype).double()
    finite = low.isfinite() & wide.isfinite()
    noise = float((low - wide).where(finite, 0.0).norm())
    signal = float(wide.where(finite, 0.0).norm())
    return Stored(
        name,
        wide.numel(),
        infinite=int((wide.isfinite() & ~low.isfinite()).sum()),
        underflowed=int(((wide != 0) & (low == 0)).sum()),
        error=noise / signal if signal else 0.0,
        amax=float(wide.where(wide.isfinite(), 0.0).abs().max()),
        kind=kind,
    )
