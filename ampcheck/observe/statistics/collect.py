"""From rows of raw counts to a trace: what the recorder wrote, read once and added up by site."""

import struct
from array import array
from collections.abc import Iterator, Sequence

import torch

from ampcheck.observe.native import NATIVE
from ampcheck.observe.statistics.measure import RECORD_WORDS
from ampcheck.values.stats import HUGE_EXPONENT, TINY_EXPONENT, TensorStats

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


def statistics(sums: torch.Tensor) -> "Iterator[TensorStats | None]":
    """Yield the statistics of each record of a table on the host; None of one that nothing was added to."""
    if NATIVE is None:
        return (stats_of(record) if record[_CALLS] else None for record in records_of(sums))
    table = sums.contiguous()
    found = NATIVE.stats(table.data_ptr(), len(table), TINY_EXPONENT)
    return (None if fields is None else TensorStats(*fields) for fields in found)


def records_of(sums: torch.Tensor) -> Iterator["array[int]"]:
    """Yield the records of a table on the host; as a list of Python's integers it would be far slower to read."""
    words = array("q", bytes(8 * sums.numel()))
    if words:
        torch.frombuffer(words, dtype=torch.int64).copy_(sums.flatten())
    for start in range(0, len(words), RECORD_WORDS):
        yield words[start : start + RECORD_WORDS]


def stats_of(record: "array[int]") -> TensorStats:
    """Return the statistics that a record of raw counts stands for."""
    amax, squares = struct.unpack("2d", record[_AMAX : _SQUARES + 1].tobytes())
    raw = record[:_BINS].tobytes()
    low, high = (len(raw) - len(raw.lstrip(b"\0"))) // 8, (len(raw.rstrip(b"\0")) + 7) // 8
    return TensorStats(
        TINY_EXPONENT + low if high else 0,
        tuple(record[low:high]),
        record[_ZEROS],
        record[_INFS],
        record[_NANS],
        amax,
        squares,
    )
