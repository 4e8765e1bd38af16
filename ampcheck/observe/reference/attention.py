"""Fused attention in FP32: the kernels that a GPU takes for half precision have no FP32 of their own."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

#: Scores held at once; the queries are worked through in blocks.
_MOST_SCORES = 2**26


def in_fp32(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on FP32 inputs: as it is, or where it is one of these kernels by the definition of attention."""
    name = func._schema.name if hasattr(func, "_schema") else ""
    return _KERNELS[name](_named(func, args, kwargs)) if name in _KERNELS else func(*args, **kwargs)


def beside(
    func: Any,
    args: tuple[Any, ...],
    wide_args: tuple[Any, ...],
    kwargs: dict[str, Any],
    results: tuple[Tensor, ...],
    factor: float,
) -> tuple[Tensor, ...]:
    """Return what FP32 has where numbers are dropped that only the kernel knows.

    That is the script's results, times `factor`, and beside them what other inputs change where nothing is dropped.
    """
    low_args = tuple(
        one.float() if isinstance(one, Tensor) and one.is_floating_point() else one for one in args
    )
    computed = (_KERNELS | _EFFICIENT)[func._schema.name]
    exact, near = (computed(_named(func, given, kwargs)) for given in (wide_args, low_args))
    pairs = zip(results, exact, near, strict=False)
    return tuple(low.float() * factor + (one - other * factor) for low, one, other in pairs)


def _named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [argument.name.rstrip("_") for argument in func._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


def _forward(given: dict[str, Any]) -> tuple[Tensor, ...]:
    query, key, value = given["query"], given["key"], given["value"]
    groups = query.shape[-3] // key.shape[-3]
    key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
    blocks = [weights @ value for _, weights in _weights(query, key, given)]
    return (torch.cat(blocks, -2),)


def _backward(given: dict[str, Any]) -> tuple[Tensor, ...]:
    query, key, value, grad_out = given["query"], given["key"], given["value"], given["grad_out"]
    groups, scale = query.shape[-3] // key.shape[-3], _scale(given)
    key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
    grad_query, grad_key, grad_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
    for rows, weights in _weights(query, key, given):
        grad = grad_out[..., rows, :]
        grad_value += weights.mT @ grad
        grad_weights = grad @ value.mT
        grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdim=True))
        grad_query[..., rows, :] = grad_scores @ key * scale
        grad_key += grad_scores.mT @ query[..., rows, :] * scale
    shared = [one.unflatten(-3, (-1, groups)).sum(-3) for one in (grad_key, grad_value)]
    return (grad_query, *shared)


def _weights(query: Tensor, key: Tensor, given: dict[str, Any]) -> Iterator[tuple[slice, Tensor]]:
    """Yield some queries' places, and how much each of them takes of every value."""
    queries, keys = query.shape[-2], key.shape[-2]
    step = max(1, _MOST_SCORES // max(1, keys * query[..., 0, 0].numel()))
    bias = given.get("attn_bias")
    for first in range(0, queries, step):
        rows = slice(first, min(first + step, queries))
        scores = query[..., rows, :] @ key.mT * _scale(given)
        if bias is not None:
            scores += bias[..., rows, :] if bias.shape[-2] > 1 else bias
        if given.get("is_causal"):
            places = torch.arange(rows.start, rows.stop, device=query.device)
            later = torch.arange(keys, device=query.device) > places[:, None]
            scores.masked_fill_(later, float("-inf"))
        yield rows, scores.softmax(-1)


def _scale(given: dict[str, Any]) -> float:
    scale = given.get("scale")
    return float(given["query"].shape[-1] ** -0.5 if scale is None else scale)


def _kernels(*kinds: str) -> dict[str, Callable[[dict[str, Any]], tuple[Tensor, ...]]]:
    both = {"": _forward, "_backward": _backward}
    return {f"aten::_scaled_dot_product_{kind}_attention{end}": both[end] for kind in kinds for end in both}


_KERNELS = _kernels("flash", "cudnn")
#: It has an FP32 of its own, which drops other numbers.
_EFFICIENT = _kernels("efficient")
