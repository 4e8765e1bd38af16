"""What a tensor's values are, added up per site: exponent histogram, zeros, non-finites, amax, sum of squares.

A record is RECORD_WORDS int64 words, the same on every device and path:

====== =====================================================================================
0..255 finite non-zero elements by the fp32 exponent field of |x|: word b counts
       2**(b-127) <= |x| < 2**(b-126); word 0 is everything below 2**-126, word 255 everything
       from 2**128 up (float64 only)
256    exact zeros
257    infinities
258    nans
259    largest finite |x|, as the bits of a float64
260    sum of squares of the finite elements, as the bits of a float64
261    calls added up
====== =====================================================================================

Counts and amax agree bit for bit between the C kernel and torch operations; sums of squares within
float64 rounding.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any, Final, Literal

import torch
from torch import Tensor

RECORD_WORDS: Final = 262
ZEROS: Final = 256
INFS: Final = 257
NANS: Final = 258
AMAX: Final = 259
SUM_OF_SQUARES: Final = 260
CALLS: Final = 261

_COUNTS: Final = 259
_FIRST_CHUNK: Final = 256  # rows; half a MiB, enough for a small model's step
_COPY_ELEMENTS: Final = 1 << 19  # of a strided view, copied at a time: 4 MiB of float64
_CPU_ELEMENTS: Final = 1 << 16  # per pass of torch operations: temporaries stay in the second-level cache
_DEVICE_ELEMENTS: Final = 1 << 20  # elsewhere launches cost more than memory
_CODES: Final = {
    torch.float32: 0,
    torch.float64: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.float8_e4m3fn: 4,
    torch.float8_e5m2: 5,
}

Kernel = Literal["auto", "native", "torch"]


def _load_native() -> Any:
    with contextlib.suppress(ImportError):  # there was no compiler when the package was installed
        return importlib.import_module("ampcheck.observe._exphist")
    return None


_NATIVE: Final[Any] = _load_native()


def native() -> bool:
    """Whether the compiled kernel is there for tensors in CPU memory."""
    return _NATIVE is not None


class Arena:
    """The records of one device, handed out row by row and read back together."""

    def __init__(self, device: torch.device | str = "cpu", kernel: Kernel = "auto") -> None:
        """Make an empty arena on `device`; `kernel` picks the path instead of what the machine offers."""
        self.device = torch.device(device)
        on_cpu = self.device.type == "cpu"
        if kernel == "native" and not (on_cpu and native()):
            raise RuntimeError(
                f"expected the compiled kernel, got none for device {str(self.device)!r}; use kernel='auto'"
            )
        use_native = on_cpu and native() and kernel != "torch"
        self._measure: Any = _NATIVE.measure if use_native else None
        self._chunks: list[Tensor] = []
        self._records: list[Tensor] = []
        self._pointers: list[int] = []
        self._threads = torch.get_num_threads()

    def __len__(self) -> int:
        """Count the rows handed out."""
        return len(self._pointers)

    def native(self) -> bool:
        """Whether this arena measures with the compiled kernel."""
        return self._measure is not None

    def row(self) -> int:
        """Hand out a new record of zeros; its memory never moves."""
        index = len(self._pointers)
        if index == self._capacity():
            size = max(_FIRST_CHUNK, index)
            self._chunks.append(torch.zeros(size, RECORD_WORDS, dtype=torch.int64, device=self.device))
        chunk = self._chunks[-1]
        place = index - (self._capacity() - len(chunk))
        self._pointers.append(chunk.data_ptr() + place * RECORD_WORDS * 8)
        return index

    def _capacity(self) -> int:
        return sum(len(chunk) for chunk in self._chunks)

    def records(self) -> Tensor:
        """Return every record on the arena's own device as int64 [rows, RECORD_WORDS]."""
        if not self._chunks:
            return torch.zeros(0, RECORD_WORDS, dtype=torch.int64, device=self.device)
        return torch.cat(self._chunks)[: len(self)]

    def read(self) -> Tensor:
        """Copy every record to CPU memory as int64 [rows, RECORD_WORDS], in one transfer."""
        if not self._chunks:
            return torch.zeros(0, RECORD_WORDS, dtype=torch.int64)
        return torch.cat(self._chunks)[: len(self)].cpu()

    def add(self, row: int, tensor: Tensor) -> None:
        """Add the elements of a floating-point or complex tensor to a record."""
        if self._measure is not None and tensor.is_contiguous():
            code = _CODES.get(tensor.dtype)
            if code is not None and tensor.is_cpu:
                self._measure(
                    tensor.data_ptr(), tensor.numel(), code, self._pointers[row], 1, self._threads
                )
                return
        self._add_any(row, tensor.detach())

    def _add_any(self, row: int, tensor: Tensor) -> None:
        tensor, weight = _plain(tensor)
        pieces = _linear_pieces(tensor)
        for piece in pieces:
            if self._measure is not None and piece.is_cpu:
                code = _CODES[piece.dtype]
                self._measure(
                    piece.data_ptr(), piece.numel(), code, self._pointers[row], weight, self._threads
                )
            else:
                _add_with_torch(self._record(row), piece, weight)
        if len(pieces) > 1:
            self._record(row)[CALLS] -= len(pieces) - 1

    def _record(self, row: int) -> Tensor:
        if not 0 <= row < len(self):
            raise IndexError(f"expected a row below {len(self)}, got {row!r}; ask row() for one first")
        for chunk in self._chunks:
            if row < len(chunk):
                return chunk[row]
            row -= len(chunk)
        raise AssertionError

    def sample(self, tensor: Tensor, k: int) -> Tensor:
        """Copy at most k elements as float64 on the tensor's device: element i * n // k of n, in logical order.

        Fewer than k elements give all of them; complex numbers count as two elements each.
        """
        tensor = tensor.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        tensor = tensor.resolve_neg()
        n = tensor.numel()
        k = min(k, n)
        if self._measure is not None and tensor.is_cpu and tensor.is_contiguous() and tensor.dtype in _CODES:
            out = torch.empty(k, dtype=torch.float64)
            _NATIVE.sample(tensor.data_ptr(), n, _CODES[tensor.dtype], out.data_ptr(), k)
            return out
        if k == 0:
            return torch.empty(0, dtype=torch.float64, device=tensor.device)
        places = torch.arange(k, device=tensor.device).mul_(n).div_(k, rounding_mode="floor")
        return _signed_double(tensor[torch.unravel_index(places, tensor.shape)] if tensor.dim() else tensor[None])


def _plain(tensor: Tensor) -> tuple[Tensor, int]:
    """Return a real view of a known dtype without its expanded dimensions, and how often each element stands in."""
    if tensor.is_complex():  # a lazy conjugate has the same magnitudes, so it is undone rather than computed
        tensor = torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor)
    if tensor.dtype not in _CODES:
        if not tensor.is_floating_point():
            raise TypeError(f"expected a floating-point or complex tensor, got {tensor.dtype!r}; skip it")
        tensor = tensor.to(torch.float32)
    weight = 1
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            weight *= size
            tensor = tensor.narrow(dim, 0, 1)
    return tensor, weight


def _linear_pieces(tensor: Tensor) -> list[Tensor]:
    """Return one-dimensional contiguous tensors that hold every element once; copies only what has gaps."""
    n = tensor.numel()
    if n == 0:
        return [tensor.reshape(-1)]
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                break
            expected *= size
    if expected == n:
        return [tensor.as_strided((n,), (1,))]
    if n <= _COPY_ELEMENTS:
        return [tensor.reshape(-1).contiguous()]
    dim = max(range(tensor.dim()), key=tensor.shape.__getitem__)
    halves = tensor.split((tensor.shape[dim] + 1) // 2, dim)
    return [piece for half in halves for piece in _linear_pieces(half)]


def _add_with_torch(record: Tensor, flat: Tensor, weight: int) -> None:
    """Add a one-dimensional tensor to a record with torch operations that never wait for the device."""
    size = _CPU_ELEMENTS if flat.is_cpu else _DEVICE_ELEMENTS
    words = torch.full((1,), weight, dtype=torch.int64, device=flat.device)
    for chunk in flat.split(size) if len(flat) else ():
        _add_chunk(record, chunk, words)
    record[CALLS] += 1


def _add_chunk(record: Tensor, chunk: Tensor, weight: Tensor) -> None:
    if chunk.dtype is torch.float64:
        a = chunk.view(torch.int64).bitwise_and(_INF64 | _MANTISSA64)
        inf, shift = _INF64, 52
        exponent = (a >> shift).sub_(_REBIAS).clamp_(0, 255)
    else:
        a = chunk.to(torch.float32).view(torch.int32).bitwise_and(_INF32 | _MANTISSA32)
        inf, shift = _INF32, 23
        exponent = a >> shift
    sign = 31 if shift == 23 else 63
    # Sign bits as masks: -1 where the comparison holds. Four times cheaper than bool tensors on CPU.
    zero = (a - 1) >> sign
    not_finite = (inf - 1 - a) >> sign
    nan = (inf - a) >> sign
    exponent.sub_(zero, alpha=ZEROS).sub_(not_finite, alpha=2).sub_(nan)
    record.index_add_(0, exponent, weight.expand(len(chunk)))
    finite = _double(a.bitwise_and_(not_finite.bitwise_not_()))
    amax = finite.amax()
    record[AMAX] = torch.maximum(record[AMAX], amax.view(torch.int64))
    record.view(torch.float64)[SUM_OF_SQUARES] += torch.dot(finite, finite) * weight[0]


_INF32: Final = 0x7F80_0000
_INF64: Final = 0x7FF0_0000_0000_0000
_MANTISSA32: Final = 0x007F_FFFF
_MANTISSA64: Final = 0x000F_FFFF_FFFF_FFFF
_REBIAS: Final = 1023 - 127  # from float64's exponent bias to float32's


def _flushes() -> bool:
    """Whether torch.set_flush_denormal is on in this thread, where a subnormal float would read as zero."""
    smallest = float.fromhex("0x1p-1074")
    return smallest * len("1") == 0.0


def _double(bits: Tensor) -> Tensor:
    """Return |x| as float64 from the bits of a float32 or float64, whatever the flush mode."""
    if bits.dtype is torch.int64:
        return bits.view(torch.float64)
    wide = bits.view(torch.float32).to(torch.float64)
    if bits.is_cpu and _flushes():
        wide = torch.where(bits <= _MANTISSA32, bits.to(torch.float64) * 2.0**-149, wide)
    return wide


def _signed_double(values: Tensor) -> Tensor:
    if values.dtype is torch.float64:
        return values
    wide = values.to(torch.float32)
    magnitude = _double(wide.view(torch.int32).bitwise_and(_INF32 | _MANTISSA32))
    return torch.copysign(magnitude, wide)
