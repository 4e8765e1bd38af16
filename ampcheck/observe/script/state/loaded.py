"""What `load_state_dict` brings of half precision.

It casts states of optimizers to the half precision of their weights. A script may put its FP32 numbers back after that,
so it is judged when the optimizer steps. And what a checkpoint has cast to half precision comes back in FP32, infinite
or zero.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.state.left_behind import tensors_of_model
from ampcheck.values.trace import UpdateLoss

#: Part of the numbers that may become zero or infinite.
_MOST = 0.5
#: What Adam calls its mean gradients and their mean squares, and the smallest of the first that counts.
_MEAN, _SQUARES, _SMALLEST = "exp_avg", "exp_avg_sq", 1e-12
#: In learning rates, how far a step goes on average that is out of the question: Adam's go one at most.
_FAR = 10.0


def lost_in_loading(
    optimizer: torch.optim.Optimizer, saved: Any, place: tuple[str, int]
) -> Iterator[UpdateLoss]:
    """Yield the states most of whose numbers are zero or infinite once they were loaded, and were not in FP32."""
    kinds: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for parameter, state in _states(optimizer, saved):
        held = optimizer.state.get(parameter)
        loaded = held if isinstance(held, Mapping) else {}
        for key, given in state.items():
            was, now = _plain(given), _plain(loaded.get(key))
            if was is None or now is None or was.shape != now.shape:
                continue
            if was.dtype is torch.float32 and now.dtype in HALVES:
                kinds.setdefault(str(key), []).append((was, now))
    with unseen():
        for key, pairs in kinds.items():
            yield from _compared(f"{type(optimizer).__name__}.state.{key}", pairs, place)


def squares_lost_in_saving(
    optimizer: torch.optim.Optimizer, saved: Any, place: tuple[str, int]
) -> Iterator[UpdateLoss]:
    """Yield Adam's mean squares that are zero where its mean gradients are not, as no step makes them.

    They are lost if they are most of all, or if the next step would throw weights far away.
    """
    epsilons = {id(one): group.get("eps", 0.0) for group in optimizer.param_groups for one in group["params"]}
    pairs = [
        (mean.float(), squares.float(), epsilons[id(parameter)])
        for parameter, state in _states(optimizer, saved)
        if (mean := _plain(state.get(_MEAN))) is not None
        if (squares := _plain(state.get(_SQUARES))) is not None and squares.shape == mean.shape
    ]
    name = f"{type(optimizer).__name__}.state.{_SQUARES}"
    with unseen():
        # Squares of smaller ones are zero in FP32 as well.
        kept = [(torch.where(mean.abs() > _SMALLEST, mean, 0.0), squares) for mean, squares, _ in pairs]
        thrown = [both for both, (*_, eps) in zip(kept, pairs, strict=True) if _throws(*both, eps)]
        found = [*_compared(name, kept, place)] or [*_compared(name, thrown, place, most=0.0)]
    yield from (replace(loss, in_fp32=True) for loss in found)


def _throws(mean: torch.Tensor, squares: torch.Tensor, eps: Any) -> bool:
    """Tell whether Adam's next step is far longer than any of its steps because of squares that are zero."""
    if not isinstance(eps, float) or eps <= 0.0:  # some optimizers have several
        return False
    longest = float(torch.where(squares == 0, mean.abs(), 0.0).square().mean().sqrt())
    return longest > _FAR * eps


def odd_numbers(model: torch.nn.Module) -> dict[str, tuple[int, int]]:
    """Return by name how many numbers of a model are not finite, and how many are zero, where some are."""
    with unseen():
        counts = {
            name: (int((~tensor.isfinite()).sum()), int((tensor == 0).sum()))
            for name, tensor in tensors_of_model(model)
        }
    return {name: both for name, both in counts.items() if any(both)}


def lost_in_saving(
    model: torch.nn.Module, before: Mapping[str, tuple[int, int]], place: tuple[str, int]
) -> Iterator[UpdateLoss]:
    """Yield what of a model is infinite now that it was loaded, and was finite `before`; and buffers that became zero.

    Where the other numbers that were loaded are such as float16 has: else the checkpoint is not known to be the cause.
    """
    held, now, none = dict(tensors_of_model(model)), odd_numbers(model), (0, 0)
    infinite = {name: bad for name, (bad, _) in now.items() if bad and not before.get(name, none)[0]}
    buffers = {name: one.numel() for name, one in tensors_of_model(model, ("_buffers",))}
    zero = {name: size for name, size in buffers.items() if now.get(name) == (0, size) and name not in before}
    fresh = infinite | {
        name: size for name, size in zero.items() if size > 1
    }  # a single one may have come to zero
    with unseen():
        rest = [one for name, one in held.items() if name not in fresh and one.numel() > 1]
        cast = 2 * sum(torch.equal(one.half().to(one.dtype), one) for one in rest) > len(rest)
        known = {name: count for name, count in fresh.items() if cast and not held[name].isnan().any()}
    for name, count in known.items():
        bad, share = infinite.get(name, 0), count / held[name].numel()
        numbers = held[name].numel(), count - bad, bad
        yield UpdateLoss(name, *numbers, *place, infinite=bad, before=share, loaded=True, in_fp32=True)


def is_still_half(optimizer: torch.optim.Optimizer, name: str) -> bool:
    """Tell whether an optimizer has a state of this name in half precision."""
    key = name.rpartition(".")[2]
    held = [state.get(key) for state in optimizer.state.values() if isinstance(state, Mapping)]
    return any(isinstance(one, torch.Tensor) and one.dtype in HALVES for one in held)


def _plain(value: Any) -> torch.Tensor | None:
    """Return a tensor whose numbers lie here; None for anything else, as what lies on several ranks."""
    return value.detach() if type(value) is torch.Tensor and value.layout is torch.strided else None


def _states(optimizer: torch.optim.Optimizer, saved: Any) -> Iterator[tuple[Any, Mapping[Any, Any]]]:
    """Yield parameters, and what was saved of each."""
    if isinstance(saved, Mapping) and {"state", "param_groups"} <= saved.keys():
        numbers = chain.from_iterable(group["params"] for group in saved["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        states = saved["state"] if isinstance(saved["state"], Mapping) else {}
        for number, parameter in zip(numbers, parameters, strict=False):
            if isinstance(state := states.get(number), Mapping):
                yield parameter, state


def _compared(
    name: str,
    pairs: list[tuple[torch.Tensor, torch.Tensor]],
    place: tuple[str, int],
    *,
    most: float = _MOST,
) -> Iterator[UpdateLoss]:
    if not pairs:
        return
    counts = [
        torch.stack(
            [(was != 0).sum(), ((was != 0) & (low == 0)).sum(), (~low.isfinite() & was.isfinite()).sum()]
        )
        for was, now in pairs
        for low in [now.to(was.device)]
    ]
    moved, zero, wrong = (int(sum(column)) for column in zip(*(one.tolist() for one in counts), strict=True))
    if zero + wrong > most * moved:
        share = (zero + wrong) / moved
        yield UpdateLoss(name, moved, zero, wrong, *place, infinite=wrong, before=share, loaded=True)
