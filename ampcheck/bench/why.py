"""Why low precision does not pay, or not as much as it could: from the operations of a step.

Each reason carries its evidence and what could be gained at most, by arithmetic on counted work: operations and
bytes are exact, what a GPU makes of them is not known here. Nothing is said where there is nothing to say.
"""

from collections.abc import Callable, Sequence

from ampcheck.bench.ledger import Operation
from ampcheck.bench.result import Reason
from ampcheck.values.formats import HALVES
from ampcheck.values.wording import clean, percent, plural, size, some

#: Tensor Cores take halves in groups of eight.
GROUP = 8
#: Shares below these are not worth a line.
MISALIGNED_SHARE = 0.1
CAST_SHARE = 0.15
FP32_SHARE = 0.25
SMALL_SHARE = 0.5
#: An operation that moves less than this takes a GPU less time than launching it: 5 µs at 1 TB/s.
LAUNCH_BYTES = 5_000_000
#: A product with fewer rows than this cannot fill one tile of a GPU's matrix unit.
TILE = 64


def reasons(operations: Sequence[Operation]) -> tuple[Reason, ...]:
    """Return what stands in the way of low precision, most telling first."""
    found = (rule(operations) for rule in _RULES) if operations else ()
    return tuple(reason for reason in found if reason is not None)


def _launch_bound(operations: Sequence[Operation]) -> Reason | None:
    operations = [op for op in operations if op.sizes or not op.flops]  # a GPU runs recurrent layers as one
    calls = _total(operations, lambda op: op.calls)
    small = _total([op for op in operations if op.bytes / op.calls < LAUNCH_BYTES], lambda op: op.calls)
    moved = _total(operations, lambda op: op.bytes)
    if not calls or small / calls < SMALL_SHARE or moved / calls >= LAUNCH_BYTES:
        return None
    return Reason(
        "launch-bound",
        "most operations are so small that a GPU takes longer to launch than to run them",
        f"{plural(small, 'operation')} of {calls:,} move less than {size(LAUNCH_BYTES)}, {size(moved // calls)} on "
        "average",
        "a larger batch, torch.compile or CUDA graphs; lower precision alone shortens none of them",
    )


def _misaligned(operations: Sequence[Operation]) -> Reason | None:
    products = [op for op in operations if op.dtype in HALVES and op.flops]
    odd = [op for op in products if any(length % GROUP for length in op.sizes)]
    share = _share(odd, products, lambda op: op.flops)
    if share < MISALIGNED_SHARE:
        return None
    return Reason(
        "shapes",
        f"{percent(share)} of the multiplications have a size that is no multiple of {GROUP}",
        _places(odd, lambda op: op.flops, lambda op: "x".join(map(str, op.sizes))),
        f"pad these sizes to a multiple of {GROUP}: they can then run on Tensor Cores, or faster on them",
    )


def _casts(operations: Sequence[Operation]) -> Reason | None:
    casts = [op for op in operations if op.cast]
    share = _share(casts, operations, lambda op: op.bytes)
    if share < CAST_SHARE:
        return None
    return Reason(
        "casts",
        f"{percent(share)} of all bytes are moved by casts",
        _places(casts, lambda op: op.bytes, lambda op: size(op.bytes)),
        f"at most {1 / (1 - share):.2f} times as fast without them, where memory is the limit",
    )


def _stays_fp32(operations: Sequence[Operation]) -> Reason | None:
    full = [op for op in operations if op.dtype == "float32" and not op.cast]
    share = _share(full, operations, lambda op: op.bytes)
    if share < FP32_SHARE:
        return None
    return Reason(
        "fp32",
        f"{percent(share)} of all bytes are moved by operations that stay in FP32",
        _places(full, lambda op: op.bytes, lambda op: op.op),
        f"low precision can halve only the rest: at most {2 / (1 + share):.2f} times as fast, where memory is "
        "the limit",
    )


def _small_batch(operations: Sequence[Operation]) -> Reason | None:
    products = [op for op in operations if op.flops]
    thin = [op for op in products if len(op.sizes) == 3 and op.sizes[0] < TILE]  # noqa: PLR2004  # no convolutions
    share = _share(thin, products, lambda op: op.flops)
    if share < SMALL_SHARE:
        return None
    return Reason(
        "batch",
        f"{percent(share)} of the forward's computation is matrix products of fewer than {TILE} rows",
        _places(thin, lambda op: op.flops, lambda op: "x".join(map(str, op.sizes))),
        "a larger batch: each read of the weights then serves more rows",
    )


def _channels_last(operations: Sequence[Operation]) -> Reason | None:
    images = [op for op in operations if op.layout and op.dtype in HALVES]
    plain = [op for op in images if op.layout == "contiguous"]
    share = _share(plain, operations, lambda op: op.flops)
    if share < MISALIGNED_SHARE:
        return None
    return Reason(
        "channels_last",
        f"{percent(share)} of all computation is convolutions of images that are not in channels_last",
        _places(plain, lambda op: op.flops, lambda op: "x".join(map(str, op.sizes))),
        "model.to(memory_format=torch.channels_last): in half precision cuDNN transposes each of them otherwise",
    )


_RULES = (_launch_bound, _misaligned, _channels_last, _small_batch, _casts, _stays_fp32)


def _total(operations: Sequence[Operation], weight: Callable[[Operation], int]) -> int:
    return sum(weight(op) for op in operations)


def _share(
    some: Sequence[Operation], whole: Sequence[Operation], weight: Callable[[Operation], int]
) -> float:
    total = _total(whole, weight)
    return _total(some, weight) / total if total else 0.0


def _places(
    operations: Sequence[Operation], weight: Callable[[Operation], int], about: Callable[[Operation], str]
) -> str:
    """Return the heaviest places, each with what is to be said of it."""
    ordered = sorted(operations, key=weight, reverse=True)
    named: dict[str, str] = {}
    for op in ordered:
        named.setdefault(clean(op.layer) or "(root)", about(op))
    return some([f"{layer} ({text})" for layer, text in named.items()])
