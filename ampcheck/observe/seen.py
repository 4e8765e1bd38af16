"""Which tensors have been measured already, without keeping any of them alive."""

import weakref

import torch

#: Tensors remembered as measured: enough to bridge from an operation to the module it ends.
_REMEMBERED = 256


class Seen:
    """The rows of the tensors measured last."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._rows: dict[int, tuple[weakref.ref[torch.Tensor], int, int]] = {}

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
        rows[key] = (weakref.ref(tensor), tensor._version, row)
        if len(rows) > _REMEMBERED:
            del rows[next(iter(rows))]

    def row(self, tensor: torch.Tensor) -> int | None:
        """Return the row of a tensor that has not been written to since it was measured."""
        hit = self._rows.get(id(tensor))
        if hit is None or hit[0]() is not tensor or hit[1] != tensor._version:
            return None
        return hit[2]


class CastInputs:
    """The dtypes that the results of the last casts came from."""

    __slots__ = ("_origins",)

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._origins: dict[int, tuple[weakref.ref[torch.Tensor], torch.dtype]] = {}

    def forget(self) -> None:
        """Forget everything."""
        self._origins.clear()

    def undoes(self, source: torch.Tensor, out: torch.Tensor) -> bool:
        """Note a cast; tell whether it undoes the one that its input came from."""
        made = self._origins.get(id(source))
        undone = made is not None and made[0]() is source and made[1] == out.dtype
        self._origins[id(out)] = (weakref.ref(out), source.dtype)
        if len(self._origins) > _REMEMBERED:
            del self._origins[next(iter(self._origins))]
        return undone
