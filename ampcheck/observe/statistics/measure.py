"""What a tensor's values are, added up per site: exponents, zeros, non-finites, amax, sum of squares.

A record is RECORD_WORDS int64 words, the same on every device and path:

====== ==============================================================================================
0..255 finite non-zero elements by the fp32 exponent field of |x|: word b counts
       2**(b-127) <= |x| < 2**(b-126); word 0 is everything below 2**-126, word 255 everything from
       2**128 up (float64 only)
256    exact zeros
257    infinities
258    nans
259    largest finite |x|, as the bits of a float64
260    sum of squares of the finite elements, as the bits of a float64
261    calls added up
====== ==============================================================================================

Counts and amax agree bit for bit between the compiled kernel and torch operations, whatever
torch.set_flush_denormal says. Sums of squares agree within 1e-6 relative: the kernel adds four squares in
float32 before float64 takes over, where no square can leave float32's range.
"""

import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, Self

import torch
from torch import Tensor

from ampcheck.observe.native import NATIVE

RECORD_WORDS: Final = 262
ZEROS: Final = 256
AMAX: Final = 259
SQUARES: Final = 260
CALLS: Final = 261

_SAMPLED_DIMS: Final = 16  # as in _exphist.c
_FIRST_ROWS: Final = 256  # half a MiB, enough for a small model's step
_COPY_ELEMENTS: Final = 1 << 19  # of a view with gaps, copied at a time: 4 MiB of float64
_CPU_ELEMENTS: Final = 1 << 16  # per pass of torch operations: temporaries stay in the second-level cache
_DEVICE_ELEMENTS: Final = 1 << 20  # elsewhere a launch costs more than the memory
_CODES: Final = {  # as in _exphist_blocks.h
    torch.float32: 0,
    torch.float64: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.float8_e4m3fn: 4,
    torch.float8_e5m2: 5,
}
_LARGEST_SUBNORMAL32: Final = 0x007F_FFFF
_REBIAS: Final = 1023 - 127  # from float64's exponent bias to float32's

Kernel = Literal["auto", "native", "triton", "torch"]


class _Bits(NamedTuple):
    """How a float is taken apart, as tensors: a Python number would double an operation's cost."""

    one: Tensor
    magnitude: Tensor
    inf: Tensor
    mantissa: Tensor
    sign: Tensor

    @classmethod
    def of(cls, dtype: torch.dtype, mantissa: int) -> Self:
        """Return the parts of a float as wide as the integer type."""
        sign = dtype.itemsize * 8 - 1
        magnitude = (1 << sign) - 1
        inf = magnitude >> mantissa << mantissa
        return cls(*(torch.tensor(v, dtype=dtype, device="cpu") for v in (1, magnitude, inf, mantissa, sign)))


_BITS32: Final = _Bits.of(torch.int32, mantissa=23)
_BITS64: Final = _Bits.of(torch.int64, mantissa=52)


class Arena:
    """The records of one device: handed out row by row, added to, read back together."""

    def __init__(self, device: torch.device | str = "cpu", kernel: Kernel = "auto") -> None:
        """Make an empty arena on `device`; `kernel` forces a path that "auto" would choose by device."""
        self.device = torch.device(device)
        possible = self.device.type == "cpu" and NATIVE is not None
        if kernel == "native" and not possible:
            raise RuntimeError(
                f"expected a compiled kernel for device {str(self.device)!r}, got none; "
                "use kernel='auto', or install ampcheck again where there is a C compiler"
            )
        self._measure: Any = NATIVE.measure if possible and kernel != "torch" else None
        self._gpu: Any = None
        if kernel == "triton" or (kernel == "auto" and self.device.type == "cuda"):
            # Late: Triton takes half a second to load.
            gpu = importlib.import_module("ampcheck.observe.statistics.gpu")
            self._gpu = gpu.launcher(self.device, required=kernel == "triton")
            self._measure = self._gpu and self._gpu.measure
        self._on_cpu = self.device.type == "cpu"
        self._threads = torch.get_num_threads()
        self._chunks: list[Tensor] = []
        self._capacity = 0
        self._pointers: list[int] = []
        self._words: dict[int, _Words] = {}

    def native(self) -> bool:
        """Whether the compiled kernel does the measuring."""
        return self._measure is not None

    def scratch(self) -> Tensor:
        """Return row 0 with nothing in it, for a caller that takes the record away at once."""
        if not self._pointers:
            self.row()
        return self._chunks[0][0].zero_()

    def row(self) -> int:
        """Hand out a new record of zeros, whose memory will not move."""
        row = len(self._pointers)
        if row == self._capacity:
            self._grow()
        chunk = self._chunks[-1]
        place = row - self._capacity + chunk.shape[0]
        self._pointers.append(chunk.data_ptr() + place * RECORD_WORDS * chunk.itemsize)
        return row

    def _grow(self) -> None:
        rows = max(_FIRST_ROWS, self._capacity)
        with torch.inference_mode(mode=False):  # an inference tensor could not be added to outside
            self._chunks.append(torch.zeros(rows, RECORD_WORDS, dtype=torch.int64, device=self.device))
        self._capacity += rows

    def add(self, row: int, tensor: Tensor) -> None:
        """Add the elements of a floating-point or complex tensor to a record."""
        if self._measure is not None and tensor.is_cpu is self._on_cpu:
            code = _CODES.get(tensor.dtype)
            if code is not None and (tensor.is_contiguous() or _is_dense(tensor)):
                self._measure(tensor.data_ptr(), tensor.numel(), code, self._pointers[row], 1, self._threads)
                return
        self._add_view(row, tensor)

    def add_all(self, rows: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """Add each tensor to a record of its own; on CUDA, small ones of a dtype share a launch."""
        together = []
        for row, tensor in zip(rows, tensors, strict=True):
            code = _CODES.get(tensor.dtype)
            mine = self._gpu is not None and tensor.is_cpu is self._on_cpu
            if mine and code is not None and (tensor.is_contiguous() or _is_dense(tensor)):
                together.append((tensor.data_ptr(), tensor.numel(), code, self._pointers[row]))
            else:
                self.add(row, tensor)
        if together:
            self._gpu.measure_all(together)

    def _add_view(self, row: int, tensor: Tensor) -> None:
        with torch._C._DisableTorchDispatch():  # what this computes with is nobody else's operation
            tensor, weight = without_repeats(real(tensor.detach()))
            self.add_weighted(row, ((piece, weight) for piece in _dense_pieces(tensor)))

    def add_weighted(self, row: int, parts: Iterable[tuple[Tensor, int]]) -> None:
        """Add one-dimensional contiguous tensors of known dtypes as one call, each with its elements' weight."""
        count = 0
        for count, (piece, weight) in enumerate(parts, 1):  # noqa: B007  (counted below)
            if self._measure is not None and piece.is_cpu is self._on_cpu:
                what = (piece.data_ptr(), piece.numel(), _CODES[piece.dtype])
                self._measure(*what, self._pointers[row], weight, self._threads)
            else:
                self._words_of(row).add(piece, weight)
        if count > 1:  # each counted as a call
            self._words_of(row).calls.sub_(count - 1)

    def _words_of(self, row: int) -> "_Words":
        words = self._words.get(row)
        if words is None:
            place, chunks = row, iter(self._chunks)
            chunk = next(chunks)
            while place >= chunk.shape[0]:
                place -= chunk.shape[0]
                chunk = next(chunks)
            with torch.inference_mode(mode=False):
                words = self._words[row] = _Words(chunk[place])
        return words

    def records(self) -> Tensor:
        """Return every record as int64 [rows, RECORD_WORDS] on the arena's device."""
        if not self._chunks:
            return torch.zeros(0, RECORD_WORDS, dtype=torch.int64, device=self.device)
        return torch.cat(self._chunks)[: len(self._pointers)]

    def read(self) -> Tensor:
        """Copy every record to CPU memory, in one transfer."""
        return self.records().cpu()

    def sample(self, tensor: Tensor, k: int) -> Tensor:
        """Copy k of a tensor's n elements, or all if fewer, as float64 on its device.

        One of each k-th part in logical order, at a place that jumps about by a fixed rule: equal steps would
        meet the same columns of a matrix again and again. A complex number counts as two elements.
        """
        code = _CODES.get(tensor.dtype)
        if code is None or tensor.is_neg():
            tensor = tensor.detach()
            if tensor.is_complex():
                tensor = torch.view_as_real(tensor.resolve_conj())
            tensor = tensor.resolve_neg()
            code = _CODES.get(tensor.dtype)
        n = tensor.numel()
        k = min(k, n)
        if self._measure is not None and code is not None and tensor.is_cpu and tensor.dim() <= _SAMPLED_DIMS:
            out = torch.empty(k, dtype=torch.float64, device="cpu")
            gaps = () if tensor.is_contiguous() else (*tensor.shape, *tensor.stride())
            NATIVE.sample(tensor.data_ptr(), n, code, out.data_ptr(), k, *gaps)
            return out
        with torch._C._DisableTorchDispatch():  # as without the kernel's help: nobody else's operation
            tensor = tensor.detach()
            if k == 0:
                return torch.empty(0, dtype=torch.float64, device=tensor.device)
            places = sample_places(n, k, tensor.device)
            if tensor.is_contiguous():
                return _signed_doubles(tensor.view(-1)[places])
            return _signed_doubles(tensor[torch.unravel_index(places, tensor.shape)])


def sample_places(n: int, k: int, device: torch.device) -> Tensor:
    """Return which k of n elements are sampled."""
    turns = torch.arange(k + 1, device=device)
    edges = turns.mul(n).floor_divide_(k)
    spread = turns[1:].mul(2654435761).bitwise_and_(0xFFFFFFFF).bitwise_right_shift_(8)
    return edges[:-1] + spread % edges.diff()


class _Words:
    """One record as torch operations write it, without waiting for the device."""

    __slots__ = ("amax", "calls", "record", "squares")

    def __init__(self, record: Tensor) -> None:
        self.record = record
        self.amax = record[AMAX]
        self.calls = record[CALLS]
        self.squares = record.view(torch.float64)[SQUARES]

    def add(self, flat: Tensor, weight: int) -> None:
        """Add a one-dimensional tensor, every element `weight` times."""
        n = flat.shape[0]
        size = _CPU_ELEMENTS if flat.is_cpu else _DEVICE_ELEMENTS
        for start in range(0, n, size):
            self._add_chunk(flat if n <= size else flat[start : start + size], weight)
        self.calls.add_(_BITS64.one)

    def _add_chunk(self, chunk: Tensor, weight: int) -> None:
        """Count by arithmetic on bits; sign bits serve as masks, four times cheaper than bool on CPU."""
        if chunk.dtype is torch.float64:
            of = _BITS64
            bits = chunk.view(torch.int64) & of.magnitude
            word = (bits >> of.mantissa).sub_(_REBIAS).clamp_(0, 255)
        else:
            of = _BITS32
            bits = chunk.to(torch.float32).view(torch.int32) & of.magnitude
            word = bits >> of.mantissa
        zero = torch.sub(bits, of.one).bitwise_right_shift_(of.sign)
        finite = torch.sub(bits, of.inf).bitwise_right_shift_(of.sign)
        nan = torch.sub(of.inf, bits).bitwise_right_shift_(of.sign)
        # From the exponent field, 0 or 255 for these, to the words of zeros, infinities and nans.
        word.sub_(zero, alpha=ZEROS).add_(finite + of.one, alpha=2).sub_(nan)
        one = torch.ones(1, dtype=torch.int64, device=chunk.device)
        self.record.index_add_(0, word, one.expand(chunk.shape[0]), alpha=weight)
        magnitudes = _doubles(bits.bitwise_and_(finite))
        self.squares.add_(torch.dot(magnitudes, magnitudes), alpha=weight)
        # The bits of floats that are not negative are in the floats' order.
        torch.maximum(self.amax, magnitudes.amax().view(torch.int64), out=self.amax)


def real(tensor: Tensor) -> Tensor:
    """Return a tensor of a known dtype with the same magnitudes."""
    if tensor.is_complex():  # undoing a lazy conjugation is free, computing it is not
        tensor = torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor)
    if tensor.dtype in _CODES:
        return tensor.resolve_neg()  # bits cannot be viewed before
    if not tensor.is_floating_point():
        raise TypeError(f"expected a floating-point or complex tensor, got {tensor.dtype!r}; leave it out")
    return tensor.to(torch.float32)


def without_repeats(tensor: Tensor) -> tuple[Tensor, int]:
    """Return the elements of an expanded tensor once, and how often each one stands there."""
    weight = 1
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            weight *= size
            tensor = tensor.narrow(dim, 0, 1)
    return tensor, weight


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one stretch of memory, each in its own place, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _dense_pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yield one-dimensional contiguous tensors that hold every element once, copying only what has gaps."""
    n = tensor.numel()
    if n == 0 or tensor.is_contiguous():
        yield tensor.reshape(-1)
    elif _is_dense(tensor):
        yield tensor.as_strided((n,), (1,))
    elif n <= _COPY_ELEMENTS:
        yield tensor.reshape(-1).contiguous()
    else:
        dim = max(range(tensor.dim()), key=tensor.shape.__getitem__)
        for half in tensor.tensor_split(2, dim):
            yield from _dense_pieces(half)


def _doubles(bits: Tensor) -> Tensor:
    """Return |x| as float64 from the bits of a float32 or float64, in any underflow mode."""
    if bits.dtype is torch.int64:
        return bits.view(torch.float64)
    wide = bits.view(torch.float32).to(torch.float64)
    if bits.is_cpu and sys.float_info.min * 0.5 == 0.0:  # torch.set_flush_denormal is on
        return torch.where(bits <= _LARGEST_SUBNORMAL32, bits.to(torch.float64) * 2.0**-149, wide)
    return wide


def _signed_doubles(values: Tensor) -> Tensor:
    """Return values as float64, nans as nans, in any underflow mode."""
    if values.dtype is torch.float64:
        return values
    values = values.to(torch.float32)
    return torch.copysign(_doubles(values.view(torch.int32) & _BITS32.magnitude), values)
