"""The statistics of a tensor as Triton kernels, one read of memory an element; a record is laid out as in measure.py.

A program takes every `programs`-th block of a tensor. It loads the block as integers, brings each element to the
bits of |x| as a float32 (a float64 stays one), and counts words 0..258 of the record with `tl.histogram`, in shared
memory; counts stay in registers from block to block and reach the record by one atomic addition a word.

Squares are multiplied and added in float64, so their sum is within 1e-12 relative of the exact one. Its order is fixed:
a tensor of several programs leaves a partial sum for each, which `finish` adds up, so equal tensors give equal bits.
"""
# ruff: noqa: ANN001, ANN201, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton reads annotations as its own types, and what it compiles in is written as the constant it is.

from typing import Final

import triton
import triton.language as tl

BLOCK: Final = 8192  # 32 elements a thread: four loads of 16 bytes in flight in half precision
WARPS: Final = 8
MAX_PROGRAMS: Final = 2048  # whose partial sums `finish` adds up in one block
ENTRY: Final = 3  # words of a table's entry: address, elements, address of the record

_BLOCK: Final = tl.constexpr(BLOCK)
_ENTRY: Final = tl.constexpr(ENTRY)
_MAX_PROGRAMS: Final = tl.constexpr(MAX_PROGRAMS)
_FLOAT32: Final = tl.constexpr(0)  # codes of dtypes, as in measure.py
_FLOAT64: Final = tl.constexpr(1)
_FLOAT16: Final = tl.constexpr(2)
_BFLOAT16: Final = tl.constexpr(3)
_E4M3: Final = tl.constexpr(4)
_E5M2: Final = tl.constexpr(5)
_INF32: Final = tl.constexpr(0x7F80_0000)
_INF64: Final = tl.constexpr(0x7FF0_0000_0000_0000)
_BINS: Final = tl.constexpr(512)  # the next power of two above the words that are counts
_COUNTS: Final = tl.constexpr(259)
_ZEROS: Final = tl.constexpr(256)
_AMAX: Final = tl.constexpr(259)
_SQUARES: Final = tl.constexpr(260)
_CALLS: Final = tl.constexpr(261)


@triton.jit
def _pointer(data, KIND: tl.constexpr, ALIGNED: tl.constexpr):
    """Return an address as a pointer to integers as wide as the dtype."""
    if ALIGNED:  # without this the compiler loads element by element
        data = tl.multiple_of(data, 16)
    if KIND == _FLOAT64:
        pointer = data.to(tl.pointer_type(tl.int64))
    elif KIND == _FLOAT32:
        pointer = data.to(tl.pointer_type(tl.int32))
    elif (KIND == _FLOAT16) | (KIND == _BFLOAT16):
        pointer = data.to(tl.pointer_type(tl.int16))
    else:
        pointer = data.to(tl.pointer_type(tl.int8))
    return pointer


@triton.jit
def _magnitudes(raw, KIND: tl.constexpr):
    """Return the bits of |x| as a float32, or as a float64 if it is one; exact, subnormals too."""
    if KIND == _FLOAT64:
        bits = raw & 0x7FFF_FFFF_FFFF_FFFF
    elif KIND == _FLOAT32:
        bits = raw & 0x7FFF_FFFF
    elif KIND == _BFLOAT16:
        bits = (raw.to(tl.int32) & 0x7FFF) << 16
    elif KIND == _FLOAT16:
        bits = (raw & 0x7FFF).to(tl.float16, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
    elif KIND == _E5M2:  # the upper half of a float16
        half = (raw.to(tl.int16) & 0x7F) << 8
        bits = half.to(tl.float16, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
    else:  # e4m3fn: a float16 without its last bits, once the bias is moved by 2**8; it has one nan, no infinity
        code = raw.to(tl.int16) & 0x7F
        wide = (code << 7).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        bits = tl.where(code == 0x7F, _INF32 + 1, wide.to(tl.int32, bitcast=True))
    return bits


@triton.jit
def _add_block(raw, inside, counts, amax, squares, KIND: tl.constexpr):
    """Return the tallies with a block added; elements that are not `inside` are zeros that do not count."""
    bits = _magnitudes(raw, KIND)
    if KIND == _FLOAT64:
        inf = _INF64
        word = tl.minimum(tl.maximum((bits >> 52) - (1023 - 127), 0), 255).to(tl.int32)
    else:
        inf = _INF32
        word = bits >> 23
    word = tl.where(bits < inf, word, tl.where(bits == inf, 257, 258))
    word = tl.where(bits == 0, _ZEROS, word)
    counts += tl.histogram(word, _BINS, mask=inside)
    bits = tl.where(bits < inf, bits, 0)
    amax = tl.maximum(amax, tl.max(bits, 0))  # the bits of floats that are not negative are in the floats' order
    if KIND == _FLOAT64:
        wide = bits.to(tl.float64, bitcast=True)
    else:
        wide = bits.to(tl.float32, bitcast=True).to(tl.float64)
    squares += tl.sum(wide * wide, 0)
    return counts, amax, squares


@triton.jit
def _as_double_bits(amax, KIND: tl.constexpr):
    if KIND != _FLOAT64:
        amax = amax.to(tl.float32, bitcast=True).to(tl.float64).to(tl.int64, bitcast=True)
    return amax


@triton.jit(do_not_specialize=["data", "n", "record", "weight", "partials"])
def measure(
    data: tl.int64,
    n: tl.int64,
    record: tl.int64,
    weight: tl.int64,
    partials: tl.int64,
    KIND: tl.constexpr,
    ALIGNED: tl.constexpr,
    TABLE: tl.constexpr,
):
    """Add the n elements at an address to a record, each `weight` times; programs leave their `partials`.

    With TABLE, `data` is the address of a table, and each program alone adds the tensor of its entry.
    """
    first = tl.program_id(0)
    programs = tl.num_programs(0)
    data, n, record = data.to(tl.int64), n.to(tl.int64), record.to(tl.int64)  # the interpreter narrows arguments
    if TABLE:
        entry = data.to(tl.pointer_type(tl.int64)) + first * _ENTRY
        data = tl.load(entry)
        n = tl.load(entry + 1)
        record = tl.load(entry + 2)
        first = first * 0
        programs = first + 1
    pointer = _pointer(data, KIND, ALIGNED)
    places = tl.arange(0, _BLOCK)
    counts = tl.zeros([_BINS], tl.int32)
    squares = tl.zeros([1], tl.float64).sum(0)
    amax = tl.zeros([1], tl.int64 if KIND == _FLOAT64 else tl.int32).max(0)
    whole = n // _BLOCK
    for block in range(first.to(tl.int64), whole, programs):
        raw = tl.load(pointer + block * _BLOCK + places)
        counts, amax, squares = _add_block(raw, None, counts, amax, squares, KIND)
    if (n % _BLOCK != 0) & (first == whole % programs):
        rest = whole * _BLOCK + places
        inside = rest < n  # in the loop this would make every load a load of one element
        raw = tl.load(pointer + rest, mask=inside, other=0)
        counts, amax, squares = _add_block(raw, inside, counts, amax, squares, KIND)
    words = record.to(tl.pointer_type(tl.int64))
    places = tl.arange(0, _BINS)
    seen = (counts != 0) & (places < _COUNTS)
    tl.atomic_add(words + places, counts.to(tl.int64) * weight.to(tl.int64), mask=seen, sem="relaxed")
    tl.atomic_max(words + _AMAX, _as_double_bits(amax, KIND), sem="relaxed")
    squares *= weight.to(tl.float64)
    if programs == 1:
        tl.atomic_add((words + _SQUARES).to(tl.pointer_type(tl.float64), bitcast=True), squares, sem="relaxed")
    else:
        tl.store(partials.to(tl.int64).to(tl.pointer_type(tl.float64)) + first, squares)
    if first == 0:
        tl.atomic_add(words + _CALLS, 1, sem="relaxed")


@triton.jit(do_not_specialize=["partials", "programs", "record"])
def finish(partials: tl.int64, programs: tl.int64, record: tl.int64):
    """Add the programs' partial sums of squares to a record, in the same order each time."""
    places = tl.arange(0, _MAX_PROGRAMS)
    sums = tl.load(partials.to(tl.int64).to(tl.pointer_type(tl.float64)) + places, mask=places < programs, other=0.0)
    tl.atomic_add(record.to(tl.int64).to(tl.pointer_type(tl.float64)) + _SQUARES, tl.sum(sums, 0), sem="relaxed")
