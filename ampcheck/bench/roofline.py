"""What a step would take on a named GPU: a roofline over its operations, with few constants that are physical.

An operation takes as long as its multiplications at the GPU's peak, or as its bytes at the GPU's bandwidth, each at
the efficiency that its class reaches, and a little to start. The host launches one kernel after another; a step takes
as long as the slower of the two. The constants are fitted to published speed-ups (reports/bench/speed.md says how
well); every figure is a prediction (`confirmed` says what a GPU said of them).
"""

import csv
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from ampcheck.bench.ledger import Operation
from ampcheck.errors import AmpcheckError
from ampcheck.values.formats import HALVES

TERA, GIGA, MICRO = 1e12, 1e9, 1e-6
#: Operations of a multiprocessor's Tensor Cores in a cycle where sums in FP32 run at half rate.
_HALVED = 512
#: Words of a title that torch's name of a GPU may leave out.
_UNSAID = {"SXM", "SXM2", "(UNVERIFIED)"}
#: Bytes that GradScaler's check and unscaling moves for each byte of gradients: it reads and writes them.
_UNSCALE = 2


@dataclass(frozen=True, slots=True)
class Gpu:
    """Published figures of a GPU; rates are dense, per second; 0 where there is no such unit."""

    name: str
    title: str
    fp32: float
    tf32: float
    half: float
    full: float  #: of the Tensor Cores with FP16 sums; GeForce boards sum in FP32 at half of it
    bf16: bool
    bandwidth: float
    memory: int

    def peak(self, precision: str) -> float:
        """Return the rate that a precision could reach: what MFU is a share of."""
        if precision in {"fp32", "tf32"}:
            return (self.tf32 if precision == "tf32" else 0.0) or self.fp32
        return self.half or self.fp32


@dataclass(frozen=True, slots=True)
class Constants:
    """What a datasheet does not say: shares of the peaks that kernels reach, and what a launch costs."""

    product: float  #: of the FP32 peak, matrix products
    tensor_product: float  #: of the Tensor Cores' peak
    convolution: float
    tensor_convolution: float
    grouped: float  #: of the FP32 peak, convolutions in groups
    tensor_grouped: float
    bandwidth: float
    transpose: float  #: extra passes over images that Tensor Cores want in channels_last
    kernel: float  #: µs that a kernel takes at least
    launch: float  #: µs of the host for an operation
    #: of that, where no module's Python stands around it: a cast, the backward, the update
    bare_launch: float
    winograd: float  #: times `convolution`, where FP32 kernels need fewer multiplications than were counted


@dataclass(frozen=True, slots=True)
class StepTime:
    """A predicted step; the phases are seconds on the device."""

    seconds: float
    device: float
    host: float
    bounds: dict[str, float]  #: seconds on the device by what bounds them: compute, memory, kernels
    phases: dict[str, float]  #: forward, backward, update
    heaviest: tuple[tuple[str, float], ...] = ()  #: operations by their seconds
    update_host: float = 0.0  #: of the host's seconds, those for the update

    def graphed(self) -> "StepTime":
        """Return the step with forward and backward as one CUDA graph: the host launches the update only."""
        return replace(self, seconds=max(self.device, self.update_host), host=self.update_host)

    @property
    def bound(self) -> str:
        """Return what bounds most of the step."""
        if self.host > self.device:
            return "launches"
        return max(self.bounds, key=lambda name: self.bounds[name], default="")


@cache
def gpus() -> dict[str, Gpu]:
    """Return the known GPUs by name."""
    text = files("ampcheck.bench").joinpath("gpus.csv").read_text(encoding="utf-8")
    found = {}
    for row in csv.DictReader(text.splitlines()):
        fp32, tf32, half = (
            float(row[key] or 0) * TERA for key in ("fp32_tflops", "tf32_tflops", "half_tflops")
        )
        found[row["name"]] = Gpu(
            row["name"], row["title"], fp32, tf32, half,
            half * (2 if int(row["tensor_flop"]) == _HALVED else 1), row["bf16"] == "yes",
            float(row["bandwidth_gbs"]) * GIGA, int(row["memory_gib"]) * 2**30,
        )  # fmt: skip
    return found


def gpu(name: str) -> Gpu:
    """Return a GPU by name."""
    if name not in gpus():
        raise AmpcheckError(f"expected a GPU of {', '.join(gpus())}, got {name!r}")
    return gpus()[name]


def named_by(device: str) -> Gpu | None:
    """Return the GPU that torch calls by a name; of several, the one whose title says most of it."""
    words = {*re.split(r"[ -]", device.upper())}
    wanted = {card: {*card.title.upper().split()} - _UNSAID for card in gpus().values()}
    fitting = [card for card, title in wanted.items() if title <= words]
    return max(fitting, key=lambda card: len(wanted[card]), default=None)


@cache
def calibration() -> dict[str, object]:
    """Return the fitted constants and the errors they were found to have."""
    text = files("ampcheck.bench").joinpath("roofline.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def constants() -> Constants:
    """Return the fitted constants."""
    values = calibration()["constants"]
    assert isinstance(values, dict)
    return Constants(**values)


def step_time(
    operations: Sequence[Operation],
    card: Gpu,
    known: Constants,
    *,
    tf32: bool = False,
    fused: bool = False,
    gradients: int = 0,
) -> StepTime:
    """Return the predicted time of a step of these operations.

    `fused` is torch.compile: chains of element-wise operations are one kernel and keep their values inside.
    `gradients` are the bytes that a GradScaler checks and unscales.
    """
    bounds: defaultdict[str, float] = defaultdict(float)
    phases: defaultdict[str, float] = defaultdict(float)
    heavy: defaultdict[str, float] = defaultdict(float)
    launches: defaultdict[str, float] = defaultdict(float)
    for op in operations:
        seconds, bound = operation_time(op, card, known, tf32=tf32, fused=fused)
        bounds[bound] += seconds
        phases[op.phase] += seconds
        heavy[op.op] += seconds
        launches[op.phase] += _launched(op, fused=fused) * _host_share(op, known) * known.launch * MICRO
    if gradients:
        seconds = _UNSCALE * gradients / (card.bandwidth * known.bandwidth)
        bounds["memory"] += seconds
        phases["update"] += seconds
    device, host = sum(bounds.values()), sum(launches.values())
    heaviest = sorted(heavy.items(), key=lambda item: -item[1])[:5]
    update = launches["update"]
    return StepTime(max(device, host), device, host, dict(bounds), dict(phases), tuple(heaviest), update)


def _host_share(op: Operation, known: Constants) -> float:
    """Return what the host needs for an operation, as a share of what it needs for one of the forward."""
    return known.bare_launch if op.cast or op.phase != "forward" else 1.0


def _launched(op: Operation, *, fused: bool) -> int:
    """Return the kernels an operation starts; none where the compiler fuses it with the one before."""
    return 0 if fused and op.fusable and op.chained else op.kernels


def operation_time(
    op: Operation, card: Gpu, known: Constants, *, tf32: bool = False, fused: bool = False
) -> tuple[float, str]:
    """Return the seconds of an operation on the device, and what bounds it: compute, memory or kernels."""
    moved: float = op.bytes - (op.chained if fused else 0)
    compute = 0.0
    if op.flops:
        peak, tensor = _peak(op, card, tf32=tf32)
        share = _efficiency(op, known, tensor=tensor)
        # What holds a kernel up elsewhere does not notice that the sums run at half rate.
        rate = min(peak, card.full * share) if tensor and peak == card.half else peak * share
        compute = op.flops / rate
        if tensor and op.layout.startswith("contiguous"):
            moved += known.transpose * op.bytes
    memory = moved / (card.bandwidth * known.bandwidth)
    start = _launched(op, fused=fused) * known.kernel * MICRO
    bound = "kernels" if start > max(compute, memory) else "compute" if compute > memory else "memory"
    return max(compute, memory) + start, bound


def _peak(op: Operation, card: Gpu, *, tf32: bool) -> tuple[float, bool]:
    """Return the peak an operation could reach, and whether it is that of the Tensor Cores."""
    if op.dtype in HALVES and card.half and (op.dtype == "float16" or card.bf16) and _eligible(op):
        return card.half, True
    if op.dtype == "float32" and tf32 and card.tf32 > card.fp32:
        return card.tf32, True
    return card.fp32, False


def _eligible(op: Operation) -> bool:
    """Tell whether Tensor Cores take an operation: one image channel in is padded, one channel a group is not."""
    if not op.product:
        return True
    groups, _, columns, _ = op.product
    return not (op.layout and groups > 1 and columns == 1)


def _efficiency(op: Operation, known: Constants, *, tensor: bool) -> float:
    groups = op.product[0] if op.product else 1
    if op.op.startswith("convolution"):
        if groups > 1:
            return known.tensor_grouped if tensor else known.grouped
        plain = known.convolution * (known.winograd if op.winograd else 1.0)
        return known.tensor_convolution if tensor else plain
    return known.tensor_product if tensor else known.product
