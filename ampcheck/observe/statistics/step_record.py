"""What the recorder writes during a step: rows of raw counts, casts and samples, read once at the end.

They are added up by site, and become the statistics of a trace.
"""

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.observe.native import NATIVE
from ampcheck.observe.statistics.measure import RECORD_WORDS, Arena
from ampcheck.observe.statistics.sampling import add_sampled
from ampcheck.values.stats import HUGE_EXPONENT, TINY_EXPONENT, TensorStats
from ampcheck.values.trace import Cast, CastCount, Phase, Site

#: Rows kept before they are added up by site, so that memory does not grow with the length of a step.
FLUSH_ROWS = 1024
#: Calls of one site of which elements are sampled for comparison, and four of each as many again after them
#: (20, 24, 28, 32, 40, 48 ...): loops repeat themselves, and what they lose may add up.
SAMPLED_CALLS = 16
#: The number under which the loss is kept.
_LOSS = -1

_BINS = HUGE_EXPONENT - TINY_EXPONENT + 1
_ZEROS, _INFS, _NANS, _AMAX, _SQUARES, _CALLS = range(_BINS, RECORD_WORDS)
_CPU = torch.device("cpu")

#: The fields of a Site: making one takes as long as everything else at an operation that is seen first.
SiteKey = tuple[str, str, str, Phase, str, str, int]
CastKey = tuple[str, str, str, Phase, str, int]  #: the fields of a Cast


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a step_record held, on the host."""

    sites: Mapping[Site, TensorStats]  #: in order of execution
    samples: Mapping[Site, Sequence[torch.Tensor]]  #: elements of each site's sampled calls
    casts: Mapping[Cast, CastCount]  #: in order of first execution
    losses: Sequence[float]  #: one a step


class _Shelf:
    """The rows of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.arena = Arena(device)
        self.rows: list[int] = []
        self.numbers: list[int] = []
        self.sums = torch.zeros(0, RECORD_WORDS, dtype=torch.int64, device=device)

    def settle(self, sites: int) -> None:
        """Add the rows up by site, on their own device, and begin anew."""
        if self.rows:
            sums = add_rows(self.arena.records(), self.rows, self.numbers, sites)
            before = len(self.sums)
            stacked = torch.cat([self.sums, sums])
            self.sums = add_rows(stacked, range(before + sites), [*range(before), *range(sites)], sites)
            self.arena = Arena(self.device)
            self.rows, self.numbers = [], []


class StepRecord:
    """The record of one or more steps, by number of site."""

    def __init__(self, samples: int = 0, ledger: Any = None, most: int = 0) -> None:
        """Begin an empty record; `samples` elements are kept of each result.

        A `ledger`, of compiled.py, adds up what is on the CPU by itself. Of a result with more than `most`
        elements only as many are read; of parameters and gradients, all. 0 stands for no limit.
        """
        self._most = most
        self._whole: set[int] = set()
        self._ledger = ledger
        self._first_row = 0
        self._measured = 0
        self._wanted = samples
        self._numbers: dict[SiteKey, int] = {} if ledger is None else ledger.names
        self._shelves: dict[torch.device, _Shelf] = {}
        self._rows: list[tuple[_Shelf, int]] = []
        self._samples: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        self._calls: defaultdict[int, int] = defaultdict(int)
        self._casts: dict[CastKey, list[int]] = {}

    @property
    def first_row(self) -> int:
        """Rows before this one have been added up and cannot be shared any more."""
        return self._first_row if self._ledger is None else int(self._ledger.first_row)

    @property
    def measured(self) -> int:
        """Return how many tensors were measured."""
        return self._measured + (0 if self._ledger is None else int(self._ledger.measured))

    def number(self, key: SiteKey) -> int:
        """Return the number of a site."""
        number = self._numbers.setdefault(key, len(self._numbers))
        if key[3] is Phase.STATE:  # whether a step is skipped hangs on a single infinity there
            self._whole.add(number)
        return number

    def names(self) -> list[Site]:
        """Return the sites by number."""
        return [Site(*key) for key in self._numbers]

    def add(self, number: int, tensor: torch.Tensor) -> int:
        """Measure a tensor for a site; return its row."""
        shelf = self._shelves.get(tensor.device)
        if shelf is None:
            shelf = self._shelf(tensor.device)
        if self._ledger is not None and shelf.device == _CPU:
            return self._add_to_ledger(shelf.arena, number, tensor)
        row = shelf.arena.row()
        if self._most and number not in self._whole:
            add_sampled(shelf.arena, row, tensor, self._most)
        else:
            shelf.arena.add(row, tensor)
        self._keep(shelf, row, number, tensor)
        if len(self._rows) >= FLUSH_ROWS:
            self.settle()
        # Beside a ledger, whose rows have these numbers, the rows of other devices are not shared.
        return self._first_row + len(self._rows) - 1 if self._ledger is None else -1

    def _keep(self, shelf: _Shelf, row: int, number: int, tensor: torch.Tensor) -> None:
        shelf.rows.append(row)
        shelf.numbers.append(number)
        if self._wanted:
            call = self._calls[number] = self._calls[number] + 1
            if call <= SAMPLED_CALLS or not call & ((1 << call.bit_length() - 3) - 1):
                self._samples[number].append(shelf.arena.sample(tensor, self._wanted))
        self._measured += 1
        self._rows.append((shelf, row))

    def add_all(self, numbers: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
        """Measure tensors that exist all at once, whole: on CUDA small ones share a launch."""
        together: defaultdict[torch.device, list[tuple[int, torch.Tensor]]] = defaultdict(list)
        for number, tensor in zip(numbers, tensors, strict=True):
            if self._ledger is not None and tensor.is_cpu:
                self.add(number, tensor)
                continue
            shelf = self._shelf(tensor.device)
            row = shelf.arena.row()
            self._keep(shelf, row, number, tensor)
            together[shelf.device].append((row, tensor))
        for device, held in together.items():
            rows, measured = zip(*held, strict=True)
            self._shelves[device].arena.add_all(rows, measured)
        if len(self._rows) >= FLUSH_ROWS:
            self.settle()

    def _add_to_ledger(self, arena: Arena, number: int, tensor: torch.Tensor) -> int:
        """Measure what the ledger cannot read by itself."""
        record = arena.scratch()
        arena.add(0, tensor)
        row: int = self._ledger.take(number, record.data_ptr())
        return row

    def _shelf(self, device: torch.device) -> _Shelf:
        found = self._shelves.get(device)
        if found is None:
            found = self._shelves[device] = _Shelf(device)
        return found

    def alias(self, row: int, number: int) -> None:
        """Count a row, as `add` returned it, for a further site."""
        if self._ledger is not None:
            self._ledger.alias(row, number)
            return
        shelf, place = self._rows[row - self._first_row]
        shelf.rows.append(place)
        shelf.numbers.append(number)

    def keep_loss(self, loss: torch.Tensor) -> None:
        """Keep a step's loss, to be read with everything else."""
        with torch._C._DisableTorchDispatch():  # a recorder is not to see this
            shelf = self._shelf(loss.device)
            self._samples[_LOSS].append(shelf.arena.sample(loss, 1))

    def settle(self) -> None:
        """Add all rows up by site."""
        self._first_row += len(self._rows)
        self._rows = []
        with torch._C._DisableTorchDispatch():  # an outer recorder is not to see this
            for shelf in self._shelves.values():
                shelf.settle(len(self._numbers))

    def cast(self, key: CastKey, out: torch.Tensor, *, undoes: bool) -> None:
        """Count a cast that wrote `out`."""
        count = self._casts.setdefault(key, [0, 0, 0, 0])
        count[0] += 1
        count[1] += out.numel()
        count[2] += out.numel() * out.element_size()
        count[3] += undoes

    def fetch(self) -> Fetched:
        """Return everything that was written, crossing to the host once a device."""
        self.settle()
        names = self.names()
        if self._ledger is not None and names:
            sums = torch.frombuffer(self._ledger.sums(len(names)), dtype=torch.int64)
            self._shelf(_CPU).sums = sums.view(-1, RECORD_WORDS)
        sites: dict[Site, TensorStats] = {}
        samples: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        for shelf in self._shelves.values():
            if shelf.device.type == "meta":  # shapes without numbers
                continue
            picked = [(n, t) for n, kept in self._samples.items() for t in kept if t.device == shelf.device]
            sums, values = _to_host(shelf.sums, [tensor for _, tensor in picked])
            for site, stats in zip(names, statistics(sums), strict=False):
                if stats is not None:
                    sites[site] = sites[site] + stats if site in sites else stats
            for (number, _), value in zip(picked, values, strict=True):
                samples[number].append(value)
        losses = [float(value) for value in samples.pop(_LOSS, [])]
        return Fetched(
            {name: sites[name] for name in names if name in sites},
            {names[number]: kept for number, kept in samples.items()},
            {Cast(*key): CastCount(*count) for key, count in self._casts.items()},
            losses,
        )


def _to_host(
    sums: torch.Tensor, samples: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """Return the records and samples on the host, by one transfer."""
    flat = [sums.flatten(), *(sample.view(torch.int64) for sample in samples)]
    host = torch.cat(flat).cpu()
    records = host[: sums.numel()].view(-1, RECORD_WORDS)
    values = host[sums.numel() :].view(torch.float64)
    return records, values.split([sample.numel() for sample in samples]) if samples else ()


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
