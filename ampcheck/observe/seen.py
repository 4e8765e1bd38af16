"""Which tensors have been measured already, without keeping any of them alive."""

import weakref

import torch

#: Tensors remembered as measured: enough to bridge from an operation to the module it ends. Counted by how many were
#: remembered since, dead or alive: an address used again must not make the memory any longer.
REMEMBERED = 512


class Seen:
    """The rows of the tensors measured last."""

    __slots__ = ("_count", "_rows")

    def __init__(self) -> None:
        self._count = 0
        self._rows: dict[int, tuple[weakref.ref[torch.Tensor], int, int, int]] = {}

    def forget(self) -> None:
        """Forget everything."""
        self._rows.clear()

    def remember(self, tensor: torch.Tensor, row: int) -> None:
        """Note that a row holds a tensor's numbers, as they are now."""
        rows = self._rows
        if tensor.is_inference():  # nobody counts the writes to it
            return
        key = id(tensor)
        rows.pop(key, None)
        self._count += 1
        rows[key] = (weakref.ref(tensor), tensor._version, row, self._count)
        if len(rows) > REMEMBERED:
            del rows[next(iter(rows))]

    def row(self, tensor: torch.Tensor) -> int | None:
        """Return the row of a tensor that has not been written to since it was measured."""
        hit = self._rows.get(id(tensor))
        if hit is None or self._count - hit[3] >= REMEMBERED:
            return None
        return hit[2] if hit[0]() is tensor and hit[1] == tensor._version else None


class CastInputs:
    """The dtypes that the results of the last casts came from."""

    __slots__ = ("_count", "_origins")

    def __init__(self) -> None:
        self._count = 0
        self._origins: dict[int, tuple[weakref.ref[torch.Tensor], torch.dtype, int]] = {}

    def forget(self) -> None:
        """Forget everything."""
        self._origins.clear()

    def undoes(self, source: torch.Tensor, out: torch.Tensor) -> bool:
        """Note a cast; tell whether it undoes the one that its input came from."""
        made = self._origins.get(id(source))
        undone = (
            made is not None
            and self._count - made[2] < REMEMBERED
            and made[0]() is source
            and made[1] == out.dtype
        )
        self._count += 1
        self._origins.pop(id(out), None)
        self._origins[id(out)] = (weakref.ref(out), source.dtype, self._count)
        if len(self._origins) > REMEMBERED:
            del self._origins[next(iter(self._origins))]
        return undone
