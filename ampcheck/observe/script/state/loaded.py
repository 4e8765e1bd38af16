"""States of optimizers that `load_state_dict` casts to the half precision of their weights."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.script.recording import unseen
from ampcheck.values.trace import UpdateLoss

#: Part of the numbers that may become zero or infinite.
_MOST = 0.5


def lost_in_loading(
    optimizer: torch.optim.Optimizer, saved: Any, place: tuple[str, int]
) -> Iterator[UpdateLoss]:
    """Yield the states most of whose numbers are zero or infinite once they were loaded, and were not in FP32."""
    kinds: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for parameter, state in _states(optimizer, saved):
        for key, was in state.items():
            now = optimizer.state.get(parameter, {}).get(key)
            both = isinstance(was, torch.Tensor) and isinstance(now, torch.Tensor) and was.shape == now.shape
            if both and was.dtype is torch.float32 and now.dtype in HALVES:
                kinds.setdefault(str(key), []).append((was.detach(), now.detach()))
    with unseen():
        for key, pairs in kinds.items():
            yield from _compared(f"{type(optimizer).__name__}.state.{key}", pairs, place)


def _states(optimizer: torch.optim.Optimizer, saved: Any) -> Iterator[tuple[Any, Mapping[Any, Any]]]:
    """Yield parameters, and what was saved of each."""
    if isinstance(saved, Mapping) and {"state", "param_groups"} <= saved.keys():
        numbers = chain.from_iterable(group["params"] for group in saved["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        for number, parameter in zip(numbers, parameters, strict=False):
            if isinstance(state := saved["state"].get(number), Mapping):
                yield parameter, state


def _compared(
    name: str, pairs: list[tuple[torch.Tensor, torch.Tensor]], place: tuple[str, int]
) -> Iterator[UpdateLoss]:
    counts = [
        torch.stack(
            [(was != 0).sum(), ((was != 0) & (low == 0)).sum(), (~low.isfinite() & was.isfinite()).sum()]
        )
        for was, now in pairs
        for low in [now.to(was.device)]
    ]
    moved, zero, wrong = (int(sum(column)) for column in zip(*(one.tolist() for one in counts), strict=True))
    if zero + wrong > _MOST * moved:
        share = (zero + wrong) / moved
        yield UpdateLoss(name, moved, zero, wrong, *place, infinite=wrong, before=share, loaded=True)
