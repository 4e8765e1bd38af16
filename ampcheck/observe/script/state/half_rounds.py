"""FP32 weights that training begins with again and again, each time filled with numbers of half precision.

So a server's rounds go whose weights travel in half precision: through arrays, files or bytes, where no operation of
torch's leads from what was trained to what is trained next. But weights that were filled so hold nothing that half
precision does not. What all rounds have changed in FP32 is compared with how far they have come.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.state.half_judged import SHARE, UNITS
from ampcheck.observe.script.state.naming import Named
from ampcheck.observe.statistics.memory import readable
from ampcheck.observe.statistics.units import unit_of
from ampcheck.values.trace import UpdateLoss

#: Weights of an optimizer that are looked at, the largest and the smallest, and how many numbers of each.
_WEIGHTS, _NUMBERS = 8, 1024
#: Writes between steps that are looked at before weights were found so; later ever fewer are.
_LOOKS = 16
#: Numbers that must lie in half precision together: a few do by chance.
_SEVERAL = 16
#: Of FP32's way, what has to arrive.
_MOST_OF = 0.5

_Samples = list[torch.Tensor]
_Probe = tuple[weakref.ref[torch.Tensor] | None, int, int]


@dataclass(slots=True)
class _Rounds:
    """The same weights, of one model after the other or of several, from round to round."""

    names: list[str]
    dtype: torch.dtype
    first: _Samples  #: what the first round began with
    now: _Samples  #: and the last one
    intended: _Samples  #: what the rounds before the last one have changed, together
    ends: dict[str, _Samples] = field(
        default_factory=dict
    )  #: by optimizer of this round, what it has left so far
    place: tuple[str, int] = ("", 0)

    def begins(self, label: str, now: _Samples) -> None:
        """Begin training; where the weights are others than before, that is another round."""
        if not all(map(torch.equal, now, self.now)):
            left = [*self.ends.values()]
            if left:
                means = [torch.stack(ones).mean(0) for ones in zip(*left, strict=True)]
                self.intended = [a + b - c for a, b, c in zip(self.intended, means, self.now, strict=True)]
            self.now, self.ends = now, {}
        self.ends[f"{label} {len(self.ends)}"] = now


class HalfRounds:
    """Looks at some weights as training begins with them, and as its last step leaves them."""

    def __init__(self, named: Named) -> None:
        """Begin with none; `named` says what a parameter is called."""
        self._named = named
        self._rounds: dict[tuple[torch.Size, ...], _Rounds] = {}
        self._chosen: dict[str, list[weakref.ref[torch.Tensor]]] = {}  #: by optimizer
        #: By optimizer, the first of them, how often that was written when its last step began, and by that and before.
        self._probes: dict[str, _Probe] = {}
        self.trains: dict[str, tuple[_Rounds, str]] = {}  #: by optimizer, what its steps belong to
        self._looks = 0

    def begins(self, label: str, parameters: Iterable[Any], place: Callable[[], tuple[str, int]]) -> None:
        """Look at weights that are about to be stepped, if they were written since the last step, at a `place`."""
        weight, version, steps = self._probes.get(label) or self._choose(label, parameters)
        if weight is None or (first := weight()) is None:
            return
        self._probes[label] = weight, first._version, first._version - version
        if first._version - version == steps and label not in self.trains:
            return  # nothing but its step has written it since the last one
        self._looks += 1
        if not self._rounds and self._looks > _LOOKS and self._looks.bit_count() > 1:
            return
        chosen = self._alive(label)
        with unseen():
            now = [_sample(one) for one in chosen]
            self.trains.pop(label, None)
            dtype = _half_of(now)
            if dtype is None:
                return
            key = tuple(one.shape for one in chosen)
            if key not in self._rounds:
                names = [self._named(one)[1] for one in chosen]
                self._rounds[key] = _Rounds(names, dtype, now, now, [torch.zeros_like(one) for one in now])
            rounds = self._rounds[key]
            rounds.begins(label, now)
            rounds.place = place()
            self.trains[label] = rounds, [*rounds.ends][-1]

    def _choose(self, label: str, parameters: Iterable[Any]) -> _Probe:
        chosen = self._chosen[label] = [weakref.ref(one) for one in _choose(parameters)]
        return self._probes.setdefault(label, (chosen[0] if chosen else None, 0, -1))

    def ends(self, label: str) -> None:
        """Keep what a step has left of what belongs to rounds."""
        rounds, own = self.trains[label]
        if chosen := self._alive(label):
            with unseen():
                rounds.ends[own] = [_sample(one) for one in chosen]

    def _alive(self, label: str) -> list[torch.Tensor]:
        """Return the chosen weights of an optimizer, none where some are gone."""
        refs = self._chosen.get(label, ())
        held = [one for ref in refs if (one := ref()) is not None]
        return held if len(held) == len(refs) else []

    @property
    def losses(self) -> Iterator[UpdateLoss]:
        """Yield the weights of which nothing has come where FP32 has gone far."""
        for rounds in self._rounds.values():
            for name, way, went, unit in _compared(rounds):
                far = way.abs() >= UNITS * unit
                moved, stuck = int(far.sum()), int((far & (went == 0)).sum())
                if 2 * stuck > moved:
                    yield UpdateLoss(name, moved, stuck, 0, *rounds.place, stepped=True, in_fp32=True)

    @property
    def compared(self) -> set[str]:
        """Return the weights that are known to be filled so, and of which something has changed in FP32."""
        return {name.lstrip(".") for rounds in self._rounds.values() for name, *_ in _compared(rounds)}

    @property
    def unjudged(self) -> list[str]:
        """Return the weights of which it is not known whether half precision keeps what changes them.

        It does where they have come most of FP32's way, and that is more than rounding.
        """
        every = (one for rounds in self._rounds.values() for one in _compared(rounds))
        return [name for name, way, went, unit in every if not _arrives(way, went, unit)]


def _compared(rounds: _Rounds) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield each weight that FP32 moves, how far that and half precision have moved it, and what a unit is."""
    with unseen():
        for name, first, now, way in zip(
            rounds.names, rounds.first, rounds.now, rounds.intended, strict=True
        ):
            if bool(way.any()):
                unit = torch.maximum(unit_of(first.to(rounds.dtype)), SHARE / UNITS * first.abs())
                yield name, way, now - first, unit


def _arrives(way: torch.Tensor, went: torch.Tensor, unit: torch.Tensor) -> bool:
    units = (way / unit).square().mean()
    return bool((units >= 1.0) & ((way * went).sum() >= _MOST_OF * way.square().sum()))


def _choose(parameters: Iterable[Any]) -> list[torch.Tensor]:
    """Return some weights in FP32."""
    held = [one for one in parameters if isinstance(one, torch.Tensor) and one.dtype is torch.float32]
    held = [one for one in held if readable(one) and one.numel() and not one.is_inference()]
    held.sort(key=torch.Tensor.numel, reverse=True)
    return held if len(held) <= _WEIGHTS else [*held[: _WEIGHTS // 2], *held[-_WEIGHTS // 2 :]]


def _sample(weight: torch.Tensor) -> torch.Tensor:
    flat = weight.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // _NUMBERS))].clone()


def _half_of(samples: _Samples) -> torch.dtype | None:
    """Return the half precision that all numbers lie in, None where there is none, or they are alike."""
    several = sum(one.unique().numel() for one in samples) >= _SEVERAL
    held = (low for low in HALVES if all(torch.equal(one.to(low).to(one.dtype), one) for one in samples))
    return next(held, None) if several else None
