"""Half-precision numbers that were there before the step: FP32 cannot know what they were before they were rounded.

A batch that was stored in half precision, a replay buffer, a state that is carried from step to step. The reference
takes such numbers as exact. Where the first operation on them is a matrix product, autocast would have rounded them
anyway; where they are cast up or computed with, what rounding has lost was not seen.
"""

import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.reference.effects import Effects
from ampcheck.observe.reference.fed_back import FedBack
from ampcheck.observe.reference.lineage import MOVES
from ampcheck.observe.reference.sharing import local
from ampcheck.observe.source import running_line
from ampcheck.observe.statistics.memory import readable, tensors_of, version_of
from ampcheck.observe.statistics.units import GRIDS, is_grid, whole
from ampcheck.observe.unusual import in_memory
from ampcheck.values.op_kinds import CASTS, rounds_inputs
from ampcheck.values.outcome import HARM_ERROR
from ampcheck.values.wording import some

if TYPE_CHECKING:
    from ampcheck.values.trace import Site

#: What is not audited where such numbers were computed with, behind their names.
GIVEN = "half-precision tensors kept from before the step: what rounding them has lost is not known"
#: How many of them are looked up.
_NAMED = 8


class TakenAsIs(NamedTuple):
    """Something of the script's that FP32 takes as it is."""

    name: str
    file: str = ""
    line: int = 0
    worse: float = 0.0  #: of picks, by how much they are worse than FP32's
    share: float = 0.0  #: that, as a part of how far FP32's picks are from the average

    @property
    def far(self) -> bool:
        """Whether picks are much worse."""
        return self.share > HARM_ERROR

    @property
    def words(self) -> str:
        """Return the name and where it is taken."""
        return f"{self.name} at {Path(self.file).name}:{self.line}" if self.line else self.name


class Given:
    """Knows which storages hold numbers from before the step, or copies of them."""

    def __init__(
        self,
        weights: Callable[[], Iterable[torch.Tensor]],
        called: Callable[[torch.Tensor], str],
        buffers: Callable[[], Iterable[tuple[str, torch.Tensor]]] = tuple,
    ) -> None:
        """Begin with nothing found; `weights` gives the model's own tensors, which are judged as weights.

        `called` says what the script calls a tensor. Those of the `buffers` that no step writes are tables: they may
        have been computed in half precision.
        """
        self._weights, self._called = weights, called
        self._buffers = buffers
        self.fed_back = FedBack()
        self._read: dict[int, int] = {}  #: by storage that was computed with, how often it had been written
        self._owned: set[int] = set()
        self._held: dict[int, StorageWeakRef] = {}
        self.found: dict[
            int, TakenAsIs | None
        ] = {}  #: by storage that was computed with; None for one not looked up
        self._numbers: dict[int, torch.Tensor] = {}  #: the same themselves, as they were when they were read
        #: By storage that holds copies, what was copied.
        self._from: dict[int, weakref.ref[torch.Tensor]] = {}
        self._copied: torch.Tensor | None = None
        #: By storage of what FP32 has carried on from the step before, what has made it.
        self.carried: dict[int, Site | None] = {}
        self.outside: dict[tuple[str, int], Site | None] = {}  #: the same by the lines that read it
        self.beside = False  #: some were computed with where nothing is trained, as the next step's are
        self.entered = False  #: some have entered products, as autocast would have rounded them

    def read(
        self, rule: Effects, values: Iterable[Any], targets: list[torch.Tensor], known: Callable[..., Any]
    ) -> bool:
        """Take note of what an operation reads; tell whether its results hold the same numbers elsewhere."""
        values = list(values)
        self.fed_back.note(rule.name, values, targets)
        half = [tensor for tensor in tensors_of(values) if tensor.dtype in HALVES and readable(tensor)]
        for tensor in half if self.carried else ():
            place = tensor.untyped_storage()._cdata
            if place in self.carried:
                self.outside.setdefault(running_line(), self.carried[place])
        old = [tensor for tensor in half if self._is_old(tensor, known)]
        if not torch.is_grad_enabled():
            self.beside = self.beside or bool(old and not targets)
            return False
        if not rounds_inputs(rule.name):
            for tensor in half:
                self._read.setdefault(tensor.untyped_storage()._cdata, version_of(tensor))
        written = [id(tensor) for tensor in targets]
        self._hold(tensor for tensor in old if id(tensor) in written and not _whole(tensor))
        read = [tensor for tensor in old if id(tensor) not in written]
        if not read or rounds_inputs(rule.name):
            self.entered = self.entered or bool(read)
            return False
        wide = any(tensor.dtype not in HALVES for tensor in targets)
        casts_up = any(isinstance(value, torch.dtype) and value not in HALVES for value in values)
        if rule.name in MOVES or (rule.name in CASTS and not (wide or casts_up)):
            self._copied = self._first(read[0] if read[0]._base is None else read[0]._base)
            return True
        for tensor in read:
            self._computes_with(tensor)
        return False

    def holds(self, place: int) -> bool:
        """Tell whether a storage holds numbers from before the step: all of them, or those that it has not written."""
        held = self._held.get(place)
        return held is not None and not held.expired()

    def _computes_with(self, tensor: torch.Tensor) -> None:
        """Take note of numbers that an operation computes with."""
        place = tensor.untyped_storage()._cdata
        if place not in self.found:
            named = len(self.found) < _NAMED
            self.found[place] = (
                TakenAsIs(self._called(self._first(tensor)), *running_line()) if named else None
            )
            self._numbers[place] = whole(self._first(tensor).detach())

    def missed(self, versions: dict[int, int]) -> dict[str, int]:
        """Return what is not audited; `versions` keeps how often buffers were written, from step to step."""
        for place, numbers in self._numbers.items():
            if in_memory(numbers) and is_grid(numbers, GRIDS[numbers.dtype]):
                del self.found[place]  # codes, counts and images were exact from the start
        self._numbers.clear()
        for name, buffer in self._buffers():
            if buffer.dtype not in HALVES or not readable(buffer):
                continue
            place, version = buffer.untyped_storage()._cdata, version_of(buffer)
            written = versions.setdefault(place, version) != version
            if not written and self._read.get(place) == version and not _is_exact(buffer):
                self.found[place] = TakenAsIs(name)
        names = list(dict.fromkeys(one.words for one in self.taken))
        found = {f"{some(names, 1)}: {GIVEN}" if names else GIVEN: len(self.found)} if self.found else {}
        return found | self.fed_back.missed()

    @property
    def taken(self) -> tuple[TakenAsIs, ...]:
        """Return what was computed with, as far as it was looked up."""
        return tuple(one for one in self.found.values() if one is not None)

    def integers(self, _: torch.Tensor) -> torch.Tensor | None:
        """Return what stands beside integers made of such numbers, where that is something else."""
        return None

    def moved(self, out: Any) -> None:
        """Take note of results that hold the same numbers."""
        copies = [tensor for tensor in tensors_of((out,)) if tensor.dtype in HALVES and readable(tensor)]
        self._hold(copies)
        if self._copied is not None:
            origin, self._copied = weakref.ref(self._copied), None
            self._from.update(dict.fromkeys((one.untyped_storage()._cdata for one in copies), origin))

    def _first(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what a tensor is a copy of, if that is still there."""
        origin = self._from.get(tensor.untyped_storage()._cdata)
        return found if origin is not None and (found := origin()) is not None else tensor

    def _hold(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._held[storage._cdata] = StorageWeakRef(storage)

    def _is_old(self, tensor: torch.Tensor, known: Callable[..., Any]) -> bool:
        place = tensor.untyped_storage()._cdata
        if place in self._held:
            return self.holds(place)
        if place in self._owned or known(tensor) is not None:
            return False
        weights = map(local, self._weights())
        self._owned = {one.untyped_storage()._cdata for one in weights if readable(one)}
        return place not in self._owned


def _whole(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _is_exact(tensor: torch.Tensor) -> bool:
    """Tell whether all numbers are powers of two, zero or infinite: no rounding has made these."""
    mantissas = torch.frexp(tensor.float()).mantissa.abs()
    return bool(((mantissas + mantissas == 1) | (tensor == 0) | tensor.isinf()).all())
