"""From rows of raw counts to a trace: what the recorder wrote, read once and added up by site."""

import struct
from collections.abc import Sequence

import torch

from ampcheck.observe.measure import RECORD_WORDS
from ampcheck.stats import HUGE_EXPONENT, TINY_EXPONENT, TensorStats

_BINS = HUGE_EXPONENT - TINY_EXPONENT + 1
_ZEROS, _INFS, _NANS, _AMAX, _SQUARES, _CALLS = range(_BINS, RECORD_WORDS)


def add_rows(records: torch.Tensor, rows: Sequence[int], groups: Sequence[int], count: int) -> torch.Tensor:
    """Return `count` records, each the sum of the rows that belong to its group."""
    device = records.device
    picked = records[torch.tensor(rows, dtype=torch.int64, device=device)]
    index = torch.tensor(groups, dtype=torch.int64, device=device)
    sums = torch.zeros(count, RECORD_WORDS, dtype=torch.int64, device=device)
    sums.index_add_(0, index, picked)
    amax = torch.zeros(count, dtype=torch.float64, device=device)
    amax.scatter_reduce_(0, index, picked[:, _AMAX].contiguous().view(torch.float64), "amax")
    squares = torch.zeros(count, dtype=torch.float64, device=device)
    squares.index_add_(0, index, picked[:, _SQUARES].contiguous().view(torch.float64))
    sums[:, _AMAX] = amax.view(torch.int64)
    sums[:, _SQUARES] = squares.view(torch.int64)
    return sums


def stats_of(record: Sequence[int]) -> TensorStats:
    """Return the statistics that a record of raw counts stands for."""
    amax, squares = struct.unpack("2d", struct.pack("2q", record[_AMAX], record[_SQUARES]))
    counts = {TINY_EXPONENT + i: count for i, count in enumerate(record[:_BINS]) if count}
    return TensorStats.from_counts(
        counts, zeros=record[_ZEROS], infs=record[_INFS], nans=record[_NANS], amax=amax, sum_squares=squares
    )
