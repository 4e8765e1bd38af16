"""A part of a tensor's elements, which stands for all: how it is picked, and how far off it may be.

The elements are split in order into k parts that are equal, or differ by one element. One of each part is read,
and counted as often as the part has elements, so that the counts add up to the tensor's. Where in its part it
lies is a hash of the part's number: the same in every run, unrelated to what repeats in the tensor.

How far off: a count is a sum of independent terms, one a part, each 0 or the part's size w. By Hoeffding, with
probability 0.95 over the places, a share is off by at most sqrt(ln(2/0.05) / 2 * sum of (w/n)^2), and the sum is
at most 25/24 / k. Where elements near each other are alike it is less.
"""

import functools
from collections.abc import Iterator
from math import log, sqrt
from typing import Final

import torch
from torch import Tensor

from ampcheck.observe.statistics.measure import Arena, real, without_repeats
from ampcheck.values.wording import count, percent

CONFIDENCE: Final = 0.95
#: The largest k * sum of (w/n)^2, where half as many parts have three elements as have two and a remainder of
#: one is left out: parts of one element are read whole and are never off.
_UNEVEN: Final = 25 / 24
_MASK: Final = 0xFFFFFFFF
#: Tensors of few sizes come up again and again in a step; their places take 8 k bytes each.
_SIZES: Final = 64

Places = tuple[tuple[Tensor, int], ...]  #: places of elements, and what each counts


def share_bound(k: int) -> float:
    """Return how far off a share of a tensor's elements is at most, with 95 % confidence, when k are read.

    >>> round(share_bound(10_000), 4)
    0.0139
    """
    return sqrt(_UNEVEN * log(2 / (1 - CONFIDENCE)) / (2 * k))


def words(k: int) -> str:
    """Return what a report says of having read k elements."""
    off, rare = min(share_bound(k), 1.0), min(3 / k, 1.0)  # (1 - 3/k)^k is about 0.05
    return (
        f"sampled: of a result with more than {count(k)} elements {count(k)} were read and stand for the rest; a "
        f"share of its elements is off by at most {percent(off)} (95 % confidence), and zeros, infinities, NaNs "
        f"and largest magnitudes rarer than {percent(rare)} may be missed; parameters, their gradients, the loss "
        "and re-runs are exact"
    )


def add_sampled(arena: Arena, row: int, tensor: Tensor, k: int) -> None:
    """Add a tensor to a record, by k of its elements where it holds more."""
    with torch._C._DisableTorchDispatch():
        held, weight = without_repeats(real(tensor.detach()))
        if held.numel() > k:
            arena.add_weighted(row, _picked(held, weight, k))
            return
    arena.add(row, tensor)


def _picked(tensor: Tensor, weight: int, k: int) -> Iterator[tuple[Tensor, int]]:
    for places, size in sampled_places(tensor.numel(), k, tensor.device):
        if tensor.is_contiguous():
            yield tensor.view(-1)[places], size * weight
        else:
            yield tensor[torch.unravel_index(places, tensor.shape)], size * weight


@functools.lru_cache(maxsize=_SIZES)
def sampled_places(n: int, k: int, device: torch.device) -> Places:
    """Return which k of n elements are read, together those that count the same."""
    parts = torch.arange(k + 1, device=device)
    edges = parts.mul(n).floor_divide_(k)
    sizes = edges.diff()
    places = edges[:-1] + (_hash(parts[1:]).mul_(sizes) >> 32)
    small = n // k
    groups = ((places[sizes == size], size) for size in (small, small + 1))
    return tuple((group, size) for group, size in groups if len(group))


def _hash(numbers: Tensor) -> Tensor:
    """Return 32 bits for each number, as MurmurHash3 mixes them in the end."""
    mixed = numbers ^ (numbers >> 16)
    for factor, shift in ((0x85EBCA6B, 13), (0xC2B2AE35, 16)):
        mixed = mixed.mul(factor).bitwise_and_(_MASK)
        mixed = mixed ^ (mixed >> shift)
    return mixed
