"""Numbers that a script looks at: one that is not finite, and is in FP32, sends it another way than FP32 would go."""

from collections.abc import Callable
from math import inf
from typing import Any

import torch

from ampcheck.observe import modes
from ampcheck.observe.source import in_engine, running_line
from ampcheck.observe.statistics.memory import readable
from ampcheck.values.wording import location

_Of = Callable[[torch.Tensor], torch.Tensor | None]
_ATEN = torch.ops.aten
#: Ways to ask whether a number is finite; `isfinite` compares its size with infinity.
_ASKS = (_ATEN.isnan.default, _ATEN.isinf.default, _ATEN.ne.Scalar, _ATEN.ne.Tensor)
#: What hands a number to Python.
READ = _ATEN._local_scalar_dense.default
#: What makes finite numbers of those that are not.
_HIDES = frozenset(
    map(id, (_ATEN.nan_to_num.default, _ATEN.nan_to_num_.default, _ATEN.where.self, _ATEN.masked_fill.Scalar))
)
#: By identity, since hashing an overload goes through C++.
LOOKS = frozenset(map(id, (*_ASKS, READ))) | _HIDES
#: What is not audited, before the line.
READS = "a number that is not finite, and is finite in FP32, is read"


class Checks:
    """Compares what a step looks at with what FP32 has there."""

    def __init__(self, gave_way: Callable[[Exception], None]) -> None:
        """Begin with nothing seen; `gave_way` is given an error of our own."""
        self._gave_way = gave_way
        #: by place and whether it was asked for: whether it differs, of looks before the first backward and after it
        self._found: dict[tuple[tuple[str, int], bool, bool], torch.Tensor] = {}
        self._hidden: dict[tuple[str, int], torch.Tensor] = {}  #: by place, whether it has hidden an overflow
        self.backward = False  #: a backward has begun: gradients may be looked at

    def note(self, func: Any, args: tuple[Any, ...], of: _Of) -> None:
        """Take note of a number that is looked at; `of` returns FP32's, None where it is the same."""
        try:
            self._note(func, args, of)
        except Exception as error:  # noqa: BLE001  # which must not end an operation of the script's
            self._gave_way(error)

    @modes.unseen
    def _note(self, func: Any, args: tuple[Any, ...], of: _Of) -> None:
        if id(func) in _HIDES:
            self._hides(args, of)
            return
        number = args[0]
        if not isinstance(number, torch.Tensor) or number.numel() != 1 or not number.is_floating_point():
            return
        wide = of(number) if readable(number) else None
        if wide is None or (func is _ATEN.ne.Scalar and args[1] != inf):
            return
        key = running_line(), func is not READ, self.backward
        differs = (~number.isfinite() & wide.isfinite()).reshape(())
        self._found[key] = self._found[key] | differs if key in self._found else differs

    def _hides(self, args: tuple[Any, ...], of: _Of) -> None:
        """Take note of gradients that are not finite, and are in FP32; a backward of torch's hides nothing."""
        if self.backward and in_engine():
            return
        for number in args if self.backward else ():
            is_float = isinstance(number, torch.Tensor) and number.is_floating_point()
            wide = of(number) if is_float and readable(number) else None
            if wide is not None and number.dim():
                hides = (~number.isfinite() & wide.isfinite()).any()
                place = running_line()
                self._hidden[place] = self._hidden[place] | hides if place in self._hidden else hides

    def hidden(self) -> tuple[str, int] | None:
        """Return the line that makes finite numbers of gradients that are not, and are in FP32."""
        return next((place for place, hides in self._hidden.items() if place[1] and hides), None)

    def read_behind(self) -> tuple[str, int]:
        """Return the line that reads such a number behind the backward, as it does the size of gradients."""
        looks = ((key, differs) for key, differs in self._found.items() if key[2] and not key[1])
        return next((place for (place, *_), differs in looks if place[1] and differs), ("", 0))

    def fetch(self, *, overflowed: bool) -> tuple[bool, dict[str, int]]:
        """Return whether a loss that was asked about is infinite in low precision only, and what is not audited.

        Where gradients overflow, what is looked at behind the backward follows from that.
        """
        found = {key for key, differs in self._found.items() if differs and not (overflowed and key[2])}
        return any(asked for _, asked, _ in found), {
            f"{READS} at {location(*place)}: what the script does with it was not judged": 1
            for place, asked, _ in found
            if not asked
        }
