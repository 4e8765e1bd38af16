"""Casts of weights that autocast has kept over an optimizer's step: a forward computes with the weights of before.

Autocast keeps the cast of each weight until its outermost region ends. Its cache cannot be read, but a cast knows by
its node which weight it was made of.
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from threading import get_ident
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe import modes
from ampcheck.observe.dtypes import HALVES

_CAST = "ToCopyBackward0"
#: Backwards of a thread that are looked at.
_LOOKS = 8
#: Changes of a weight under one cast of it that no other thread's step in the middle of a forward explains.
_CHANGES = 3


class StaleCasts:
    """Looks at the casts of weights that a recorded step uses."""

    def __init__(self, first_node: int) -> None:
        """Begin with none; nodes from this number on are the step's own."""
        self._first = first_node
        self._found = False
        self._versions: dict[int, int] = {}  #: by cast, its weight's when that was looked at last

    def among(self, args: tuple[Any, ...]) -> torch.Tensor | None:
        """Return the weight, the first one, whose cast is among some arguments and holds other numbers by now."""
        for arg in () if self._found else args:
            if isinstance(arg, torch.Tensor) and arg.dtype in HALVES and arg.requires_grad:
                weight = _weight(arg)
                if weight is not None and self._is_stale(arg, weight):
                    self._found = True
                    return weight
        return None

    def _is_stale(self, cast: torch.Tensor, weight: torch.Tensor) -> bool:
        before = self._versions.get(id(cast))
        self._versions[id(cast)] = weight._version
        own = cast.grad_fn is not None and cast.grad_fn._sequence_nr() >= self._first
        if before == weight._version or (own and before is None):
            return False
        return _differ(weight, cast)


class OldCasts:
    """Looks at the casts of weights that backwards of threads go through of which nothing is recorded."""

    def __init__(self) -> None:
        """Begin with none."""
        #: By thread, after its last backward: the number of its newest cast, and the versions of the weights.
        self._last: dict[int, tuple[int, dict[int, int]]] = {}
        self._looks: Counter[int] = Counter()

    def among(self, losses: Any) -> bool:
        """Tell whether a backward goes through a cast that one before it went through, of a weight changed since."""
        thread, given = get_ident(), (losses,) if isinstance(losses, torch.Tensor) else tuple(losses)
        self._looks[thread] += 1
        if self._looks[thread] > _LOOKS:
            return False
        newest, versions = self._last.get(thread, (-1, {}))
        casts = list(_casts_behind(one.grad_fn for one in given if isinstance(one, torch.Tensor)))
        self._last[thread] = (
            max((number for number, _ in casts), default=newest),
            {id(weight): weight._version for _, weight in casts},
        )
        return any(
            number <= newest and versions.get(id(weight), weight._version) != weight._version
            for number, weight in casts
        )


class KeptCasts:
    """Looks at the casts of weights that a thread computes with whose operations are heard one by one."""

    def __init__(self) -> None:
        """Begin with none."""
        #: By the memory of a cast: its weight, and the versions of that at which it was used.
        self._casts: dict[int, tuple[StorageWeakRef, weakref.ref[torch.Tensor], set[int]]] = {}

    def made(self, weight: Any, cast: Any) -> None:
        """Take note of the cast of a weight."""
        if (
            isinstance(weight, torch.Tensor)
            and weight.is_leaf
            and weight.requires_grad
            and cast.dtype in HALVES
        ):
            storage = cast.untyped_storage()
            self._casts[storage._cdata] = StorageWeakRef(storage), weakref.ref(weight), {weight._version}

    def clear(self) -> None:
        """Forget them: the region of autocast has ended, and its casts with it."""
        if self._casts:
            self._casts.clear()

    def outdated(self, args: Iterable[Any]) -> bool:
        """Tell whether one among some arguments was used while its weight changed again and again."""
        if not self._casts:
            return False
        halves = (one for one in args if isinstance(one, torch.Tensor) and one.dtype in HALVES)
        known = (self._casts.get(one.untyped_storage()._cdata) for one in halves)
        for memory, weight, versions in filter(None, known):
            if not memory.expired() and (now := weight()) is not None:
                versions.add(now._version)
                if len(versions) > _CHANGES:
                    return True
        return False


def _casts_behind(roots: Iterable[Any]) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the casts of weights in a graph, each by its number and its weight."""
    waiting, seen = list(roots), set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        behind = [after for after, _ in node.next_functions]
        weight = getattr(behind[0], "variable", None) if behind and node.name() == _CAST else None
        if isinstance(weight, torch.Tensor):
            yield node._sequence_nr(), weight
        waiting += behind


@modes.unseen
def _differ(weight: torch.Tensor, cast: torch.Tensor) -> bool:
    """Tell whether a cast holds other bits than its weight would now: NaN is no other number than NaN."""
    now = weight.detach().to(cast.dtype)
    return not torch.equal(now.view(torch.int16), cast.detach().view(torch.int16))


def _weight(cast: torch.Tensor) -> torch.Tensor | None:
    """Return the leaf that a tensor is the cast of."""
    node: Any = cast.grad_fn
    if node is None or node.name() != _CAST:
        return None
    weight = getattr(node.next_functions[0][0], "variable", None)
    return weight if isinstance(weight, torch.Tensor) and weight.shape == cast.shape else None
