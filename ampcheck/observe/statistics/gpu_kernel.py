"""The statistics of a tensor as Triton kernels, one read of memory an element; the record is measure.py's.

A program takes every `programs`-th block of a tensor. It loads the block as integers, brings each element to
the bits of |x| as a float32 (a float64 stays one), and counts exponents and zeros with `tl.histogram`, in
shared memory. Counts stay in registers from block to block and reach the record by one atomic addition each.

Squares are multiplied and added in float64, so their sum is within 1e-12 relative of the exact one. Its order
is fixed: a tensor of several programs leaves a partial sum for each, which `finish` adds up. Equal tensors,
added in the same order, give equal bits.
"""
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0913, PLR0917, PLR2004
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton reads annotations as types of its own, has no structures to pass together, and no names for numbers
# that are not compiled in; what is compiled in is written as the constant it is.

from typing import Final

import triton
import triton.language as tl

BLOCK: Final = 4096  # 16 elements a thread: with 32, registers would leave one program to a multiprocessor
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
_ZEROS: Final = tl.constexpr(256)
_INFS: Final = tl.constexpr(257)
_NANS: Final = tl.constexpr(258)
_AMAX: Final = tl.constexpr(259)
_SQUARES: Final = tl.constexpr(260)
_CALLS: Final = tl.constexpr(261)


@triton.constexpr_function
def _bins(kind):
    """Return how many bins a dtype's exponents and its zeros need: of float16 and float8 there are 40.

    No more than 256, one for each thread: on a GPU, Triton 3.6 counts 512 bins wrongly.
    """
    return 256 if kind in (_FLOAT32, _BFLOAT16, _FLOAT64) else 64


@triton.constexpr_function
def _lowest(kind):
    """Return the word of the first bin; float16 and float8 begin at 2**-24, word 103."""
    return 100 if _bins(kind) == 64 else 0


@triton.constexpr_function
def _zero_bin(kind):
    """Return the bin of zeros, which is no exponent's: 255 stands for no finite float32.

    Of float64 every bin is an exponent's: its zeros share the lowest one and are counted apart.
    """
    return 0 if kind == _FLOAT64 else _bins(kind) - 1


@triton.jit
def _pointer(data, KIND: tl.constexpr, ALIGNED: tl.constexpr):
    """Return an address as a pointer to integers as wide as the dtype."""
    if KIND == _FLOAT64:
        pointer = data.to(tl.pointer_type(tl.int64))
    elif KIND == _FLOAT32:
        pointer = data.to(tl.pointer_type(tl.int32))
    elif (KIND == _FLOAT16) | (KIND == _BFLOAT16):
        pointer = data.to(tl.pointer_type(tl.int16))
    else:
        pointer = data.to(tl.pointer_type(tl.int8))
    if ALIGNED:  # without this, the compiler loads element by element
        pointer = tl.multiple_of(pointer, 16)
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
    else:  # e4m3fn is a float16 that ends early, its exponent 8 higher; it has one nan and no infinity
        code = raw.to(tl.int16) & 0x7F
        wide = (code << 7).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        bits = tl.where(code == 0x7F, _INF32 + 1, wide.to(tl.int32, bitcast=True))
    return bits


@triton.jit
def _nothing(KIND: tl.constexpr):
    """Return the tallies of no elements."""
    none = tl.zeros([1], tl.int32).sum(0)
    amax = tl.zeros([1], tl.int64 if KIND == _FLOAT64 else tl.int32).sum(0)
    return tl.zeros([_bins(KIND)], tl.int32), none, none, none, amax, tl.zeros([1], tl.float64).sum(0)


@triton.jit
def _add_block(raw, inside, counts, zeros, infs, nans, amax, squares, KIND: tl.constexpr):
    """Return the tallies with a block added; elements that are not `inside` are zeros that do not count."""
    bits = _magnitudes(raw, KIND)
    inf: tl.constexpr = _INF64 if KIND == _FLOAT64 else _INF32
    top = tl.max(bits, 0)
    if top >= inf:  # rare: counted apart, and zeros from here on
        nans += tl.sum((bits > inf).to(tl.int32), 0)
        infs += tl.sum((bits == inf).to(tl.int32), 0)
        bits = tl.where(bits < inf, bits, 0)
        top = tl.max(bits, 0)
    amax = tl.maximum(amax, top)  # the bits of floats that are not negative are in the floats' order
    if KIND == _FLOAT64:
        word = tl.minimum(tl.maximum((bits >> 52) - (1023 - 127), 0), 255).to(tl.int32)
        wide = bits.to(tl.float64, bitcast=True)
        is_zero = bits == 0 if inside is None else (bits == 0) & inside
        zeros += tl.sum(is_zero.to(tl.int32), 0)
    else:
        word = (bits >> 23) - _lowest(KIND)
        wide = bits.to(tl.float32, bitcast=True).to(tl.float64)
    bins: tl.constexpr = _bins(KIND)
    # The last mask says to the compiler that no word is out of range, which spares a test for each element.
    word = tl.where(bits == 0, _zero_bin(KIND), word) & (bins - 1)
    counts += tl.histogram(word, bins, mask=inside)
    squares += tl.sum(wide * wide, 0)
    return counts, zeros, infs, nans, amax, squares


@triton.jit
def _publish(words, weight, counts, zeros, infs, nans, amax, KIND: tl.constexpr):
    """Add what a program counted, and its largest magnitude, to a record."""
    bins = tl.arange(0, _bins(KIND))
    is_zeros = bins == _zero_bin(KIND)
    if KIND == _FLOAT64:
        counts = tl.where(is_zeros, counts - zeros, counts)
        places = bins
        tl.atomic_add(words + _ZEROS, (zeros - infs - nans).to(tl.int64) * weight, sem="relaxed")
    else:
        counts = tl.where(is_zeros, counts - infs - nans, counts)
        places = tl.where(is_zeros, _ZEROS, bins + _lowest(KIND))
    tl.atomic_add(words + places, counts.to(tl.int64) * weight, mask=counts != 0, sem="relaxed")
    if infs + nans != 0:
        tl.atomic_add(words + _INFS, infs.to(tl.int64) * weight, sem="relaxed")
        tl.atomic_add(words + _NANS, nans.to(tl.int64) * weight, sem="relaxed")
    if KIND != _FLOAT64:
        amax = amax.to(tl.float32, bitcast=True).to(tl.float64).to(tl.int64, bitcast=True)
    tl.atomic_max(words + _AMAX, amax, sem="relaxed")


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
    data, n, record = (
        data.to(tl.int64),
        n.to(tl.int64),
        record.to(tl.int64),
    )  # the interpreter narrows arguments
    if TABLE:
        entry = data.to(tl.pointer_type(tl.int64)) + first * _ENTRY
        data = tl.load(entry)
        n = tl.load(entry + 1)
        record = tl.load(entry + 2)
        first = tl.program_id(1)  # 0 of 1
        programs = tl.num_programs(1)
    pointer = _pointer(data, KIND, ALIGNED)
    places = tl.arange(0, _BLOCK)
    counts, zeros, infs, nans, amax, squares = _nothing(KIND)
    whole = n // _BLOCK
    block = first.to(tl.int64)  # no `range`: the interpreter of Triton 3.6 cannot count with newer numpy
    while block < whole:
        raw = tl.load(pointer + block * _BLOCK + places)
        counts, zeros, infs, nans, amax, squares = _add_block(
            raw, None, counts, zeros, infs, nans, amax, squares, KIND
        )
        block += programs
    if (n % _BLOCK != 0) & (first == whole % programs):
        rest = whole * _BLOCK + places
        inside = rest < n  # in the loop this would make every load a load of one element
        raw = tl.load(pointer + rest, mask=inside, other=0)
        counts, zeros, infs, nans, amax, squares = _add_block(
            raw, inside, counts, zeros, infs, nans, amax, squares, KIND
        )
    words = record.to(tl.pointer_type(tl.int64))
    _publish(words, weight, counts, zeros, infs, nans, amax, KIND)
    squares *= weight.to(tl.float64)
    if programs == 1:
        tl.atomic_add(record.to(tl.pointer_type(tl.float64)) + _SQUARES, squares, sem="relaxed")
    else:
        tl.store(partials.to(tl.int64).to(tl.pointer_type(tl.float64)) + first, squares)
    if first == 0:
        tl.atomic_add(words + _CALLS, 1, sem="relaxed")


@triton.jit(do_not_specialize=["partials", "programs", "record"])
def finish(partials: tl.int64, programs: tl.int64, record: tl.int64):
    """Add the programs' partial sums of squares to a record, in the same order each time."""
    places = tl.arange(0, _MAX_PROGRAMS)
    sums = partials.to(tl.int64).to(tl.pointer_type(tl.float64))
    total = tl.sum(tl.load(sums + places, mask=places < programs, other=0.0), 0)
    tl.atomic_add(record.to(tl.int64).to(tl.pointer_type(tl.float64)) + _SQUARES, total, sem="relaxed")
