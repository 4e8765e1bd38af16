"""Launches the kernels of gpu_kernel.py: when, in which order, and with what in place of a host sync.

A tensor is measured at once, by one launch on the current stream and a second, tiny one where it is large.
Nothing waits in a queue: its tensors would have to be kept alive until it is launched, and whatever writes to
one in place, on any stream, would change what is measured; to copy small ones aside would take a launch each,
as measuring them does. Where a caller holds many tensors, such as gradients, `measure_all` takes the small
ones of a dtype together, by a table of their addresses.

Records belong to the stream that is current when the launcher is made. A launch on another stream waits for
that one and it for the launch, by events on the device; the host waits for nothing.
"""

import contextlib
import functools
import importlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

import torch

_ALONE: Final = 8  # blocks up to which one program is done before a second launch would have begun
_PROGRAMS_PER_PROCESSOR: Final = 4  # as many as the kernels' registers let run at once on Hopper
_INTERPRETED_PROGRAMS: Final = 3  # enough to take turns
_ALIGNMENT: Final = 16  # bytes a thread loads at a time
_RECORD_BYTES: Final = 262 * 8


#: A tensor in one stretch of memory: its address, elements, code of the dtype; the address of its record.
Entry = tuple[int, int, int, int]


class Launcher:
    """Adds tensors on one device to records there, without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        """Load Triton; launch nothing yet."""
        if device.type != "cuda" and not importlib.import_module("triton").knobs.runtime.interpret:
            raise RuntimeError("this is no CUDA device, and TRITON_INTERPRET is not set")
        self._kernels: Any = importlib.import_module("ampcheck.observe.statistics.gpu_kernel")
        self._programs = _INTERPRETED_PROGRAMS
        self._device = device
        if device.type == "cuda":
            index = torch.empty(0, device=device).device.index
            self._device = torch.device("cuda", index)
            processors = torch.cuda.get_device_properties(index).multi_processor_count
            self._programs = min(processors * _PROGRAMS_PER_PROCESSOR, self._kernels.MAX_PROGRAMS)
            self._home = torch.cuda.current_stream(index)

    def tried(self) -> Self:
        """Measure an empty tensor, which raises where the kernels do not compile or cannot be launched."""
        record = torch.zeros(_RECORD_BYTES, dtype=torch.uint8, device=self._device)
        self.measure(0, 0, 0, record.data_ptr(), 1, 0)
        return self

    def measure(self, data: int, n: int, code: int, record: int, weight: int, _threads: int) -> None:
        """Add n elements to a record, each `weight` times; the arguments are those of the CPU's kernel."""
        blocks = -(-n // self._kernels.BLOCK)
        with self._in_order():
            if blocks <= _ALONE:
                self._launch(1, data, n, record, weight, 0, code)
                return
            programs = min(blocks, self._programs)
            partials = torch.empty(programs, dtype=torch.float64, device=self._device)
            self._launch(programs, data, n, record, weight, partials.data_ptr(), code)
            self._kernels.finish[(1,)](partials.data_ptr(), programs, record)

    def measure_all(self, entries: Sequence[Entry]) -> None:
        """Add each tensor to its record once; small ones share a launch."""
        small: defaultdict[tuple[int, bool], list[tuple[int, int, int]]] = defaultdict(list)
        for data, n, code, record in entries:
            if n <= _ALONE * self._kernels.BLOCK:
                small[code, data % _ALIGNMENT == 0].append((data, n, record))
            else:
                self.measure(data, n, code, record, 1, 0)
        with self._in_order():
            for (code, aligned), rows in small.items():
                table = self._table(rows)
                self._launch(len(rows), table.data_ptr(), 0, 0, 1, 0, code, aligned=aligned)

    def _launch(self, programs: int, data: int, *rest: int, aligned: bool | None = None) -> None:
        table = aligned is not None
        self._kernels.measure[(programs,)](
            data,
            *rest,
            ALIGNED=aligned if table else data % _ALIGNMENT == 0,
            TABLE=table,
            num_warps=self._kernels.WARPS,
            enable_fp_fusion=True,  # the default; left out, some versions of Triton warn
        )

    def _table(self, rows: list[tuple[int, int, int]]) -> torch.Tensor:
        """Return rows of integers on the device; from pinned memory they are copied without waiting."""
        pinned = self._device.type == "cuda"
        table = torch.tensor(rows, dtype=torch.int64, device="cpu", pin_memory=pinned)
        return table.to(self._device, non_blocking=True)

    @contextlib.contextmanager
    def _in_order(self) -> Iterator[None]:
        """Launch on this device, after what its records' stream holds and before what that will hold."""
        if self._device.type != "cuda":
            yield
            return
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            if stream == self._home:
                yield
                return
            stream.wait_stream(self._home)
            yield
            self._home.wait_stream(stream)


@functools.cache
def _reason_against(device: torch.device) -> str:
    """Return why Triton cannot be used on a device, noted once, or nothing."""
    try:
        Launcher(device).tried()
    except Exception as error:  # noqa: BLE001  (whatever a compiler may raise: measuring goes on without it)
        first = str(error).strip().partition("\n")[0]
        reason = f"{type(error).__name__}: {first}"
        logging.getLogger(__name__).warning(
            "statistics on %s are made by torch operations, which is slower: %s", device, reason
        )
        return reason
    return ""


def launcher(device: torch.device, *, required: bool) -> Launcher | None:
    """Return what measures tensors on a device, or None where Triton is missing or does not work there."""
    reason = _reason_against(device)
    if reason and required:
        raise RuntimeError(f"expected Triton to work on {str(device)!r}, got {reason}; use kernel='auto'")
    return None if reason else Launcher(device)
