"""Memory as a list of what was taken and given back, and the moment at which most of it was in use."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ampcheck.bench.result import Split

#: CUDA's caching allocator hands out memory in blocks of this many bytes.
BLOCK = 512
#: What there is before the step, and after it.
LASTING = ("parameters", "buffers", "optimizer state")


@dataclass(slots=True)
class Allocation:
    """Memory that something asked for."""

    size: int
    role: str
    layer: str = ""
    phase: str = ""

    @property
    def block(self) -> int:
        """Return the size as CUDA's allocator rounds it."""
        return -(-self.size // BLOCK) * BLOCK


@dataclass(slots=True)
class Ledger:
    """What was taken, in order, and the events: n + 1 says that number n was taken, -(n + 1) that it came back."""

    taken: list[Allocation]
    events: list[int]
    begin: int = 0  #: event at which the step starts
    forward_end: int = 0  #: event at which the backward begins

    def split(self) -> Split:
        """Return the peak of the step by role and by layer."""
        live: set[int] = set()
        now = peak = 0
        at_peak: set[int] = set()
        kept: set[int] = set()
        lasting = 0
        for index, event in enumerate(self.events):
            number = abs(event) - 1
            size = self.taken[number].block
            now += size if event > 0 else -size
            (live.add if event > 0 else live.discard)(number)
            if index + 1 == self.forward_end:
                kept = set(live)
            if index >= self.begin and now > peak:
                peak, at_peak = now, set(live)
        for number in live:
            lasting += self.taken[number].block if self.taken[number].role in LASTING else 0
        return Split(peak, self._roles(at_peak, kept), self._layers(kept), self._moment(at_peak), lasting)

    def _roles(self, numbers: set[int], kept: set[int]) -> dict[str, int]:
        sums: Counter[str] = Counter()
        for number in numbers:
            taken = self.taken[number]
            passing = taken.role == "activations" and number not in kept
            sums["temporaries" if passing else taken.role] += taken.block
        return dict(sums.most_common())

    def _layers(self, kept: set[int]) -> dict[str, int]:
        """Return what the forward of each layer leaves for the backward."""
        sums: Counter[str] = Counter()
        for number in kept:
            taken = self.taken[number]
            if taken.phase == "forward" and taken.role in {"activations", "cast copies"}:
                sums[taken.layer] += taken.block
        return dict(sums.most_common())

    def _moment(self, numbers: set[int]) -> str:
        """Return the phase of the last thing that was taken."""
        phases = [self.taken[number].phase for number in sorted(numbers)]
        return next((phase for phase in reversed(phases) if phase), "before")


@dataclass(frozen=True, slots=True)
class Operation:
    """Operations of one kind in one layer: how often, how much they compute and move."""

    op: str
    layer: str
    phase: str
    dtype: str
    sizes: tuple[int, ...]  #: of a matrix product: rows, columns, inner; of a convolution: channels out, in
    calls: int = 0
    flops: int = 0
    bytes: int = 0
    cast: bool = False
    layout: str = ""  #: of a convolution's input: contiguous or channels_last
    product: tuple[int, ...] = ()  #: of a product or convolution: groups, rows, columns, inner size
    kernels: int = 0  #: that a GPU launches for all calls
    #: bytes read from what an element-wise operation just made; a compiler reads them not again
    chained: int = 0
    fusable: bool = False  #: element-wise, a reduction or a norm: a compiler can fuse it with its neighbours
    #: a 3x3 convolution without stride: FP32 kernels need fewer multiplications for it
    winograd: bool = False


def merged(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return operations of the same kind and place as one."""
    sums: dict[Operation, list[int]] = {}
    for op in operations:
        key = replace(op, calls=0, flops=0, bytes=0, kernels=0, chained=0)
        total = sums.setdefault(key, [0, 0, 0, 0, 0])
        for at, value in enumerate((op.calls, op.flops, op.bytes, op.kernels, op.chained)):
            total[at] += value
    return tuple(
        replace(key, calls=calls, flops=flops, bytes=size, kernels=kernels, chained=chained)
        for key, (calls, flops, size, kernels, chained) in sums.items()
    )
