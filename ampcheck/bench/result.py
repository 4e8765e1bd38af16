"""What a bench comes to: plain values, saved as JSON and rendered from there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from statistics import fmean, median

from ampcheck.bench.intervals import Interval, quantile, ratio
from ampcheck.values.recipes import RECIPES

#: Every precision by name: what it is, in words. FP32 is the first row and what the others are compared with.
PRECISIONS = {
    "fp32": "FP32, TF32 off",
    "tf32": "FP32 with TF32 matrix products",
    "fp16": "autocast in fp16, no loss scaling",
    "amp": "autocast in fp16 with GradScaler",
    "bf16": "autocast in bf16",
    "half": "the model itself cast to fp16, as .half() does",
    "bfloat16": "the model itself cast to bf16",
    "plan": "the plan of ampcheck",
    # Delayed scaling has a past, which a row does not: `ampcheck TARGET --precision fp8:te-delayed` gives it one.
    **{
        f"fp8:{chosen.name}": f"{chosen.title} of {chosen.library}: accuracy emulated, nothing timed"
        for chosen in RECIPES.values()
        if not chosen.delayed
    },
}
BASE = "fp32"
#: The name under which FP32 is measured a second time: what differs from one of the two only is noise.
AGAIN = "fp32 again"


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds a step took, one figure a block; block i of every precision ran in the same round."""

    samples: tuple[float, ...]
    steps_per_block: int
    device_samples: tuple[float, ...] = ()  #: on a GPU: between events on the stream
    skipped: int = 0  #: updates the scaler skipped in the timed region
    joules: float | None = None  #: energy of a step, where the GPU counts it

    @property
    def median(self) -> float:
        """Return the median step."""
        return median(self.samples)

    @property
    def watts(self) -> float | None:
        """Return the average power of the GPU while it was timed."""
        return None if self.joules is None else self.joules / fmean(self.samples)

    @property
    def spread(self) -> float:
        """Return the interquartile range over the median."""
        return (quantile(self.samples, 0.75) - quantile(self.samples, 0.25)) / self.median

    def speedup(self, base: "Time") -> Interval:
        """Return how many times as fast as a base this is."""
        # a precision that was timed alone has rounds of its own
        rounds = min(len(base.samples), len(self.samples))
        return ratio(base.samples[:rounds], self.samples[:rounds])


@dataclass(frozen=True, slots=True)
class Split:
    """The memory of a step at its peak, by what it is for and by the layer that asked for it."""

    peak_bytes: int
    roles: Mapping[str, int]  #: at the peak
    layers: Mapping[str, int]  #: what each layer's forward keeps for the backward, largest first
    moment: str  #: forward, backward or update
    fixed_bytes: int = 0  #: parameters, buffers, optimizer state: what does not grow with the batch


@dataclass(frozen=True, slots=True)
class Memory:
    """What a step needs: predicted for CUDA, measured on CUDA, measured on this CPU; None: not known."""

    predicted: Split | None = None
    cuda_allocated: int | None = None
    cuda_reserved: int | None = None
    cuda_retries: int | None = None
    cpu_peak: int | None = None
    note: str = ""

    @property
    def cuda_bytes(self) -> int | None:
        """Return the peak on CUDA: measured where there is a GPU, predicted elsewhere."""
        return next((peak for peak in self.peaks if peak is not None), None)

    @property
    def peaks(self) -> tuple[int | None, int | None]:
        """Return the peak on CUDA as measured and as predicted."""
        return self.cuda_allocated, None if self.predicted is None else self.predicted.peak_bytes


@dataclass(frozen=True, slots=True)
class Closeness:
    """How far a set of tensors is from its reference."""

    relative_rms: float  #: RMS of the error over RMS of the reference
    cosine: float
    bias: float  #: mean error over RMS of the reference, signed

    @property
    def finite(self) -> bool:
        """Tell whether all compared numbers were finite."""
        return isfinite(self.relative_rms)


@dataclass(frozen=True, slots=True)
class OneStep:
    """One step against its golden run."""

    reference: str  #: fp64, or fp32 where the model does not run in FP64
    loss: float
    loss_error: float  #: relative
    outputs: Closeness | None
    gradients: Closeness | None  #: None in inference
    worst: str = ""  #: the parameter whose gradient is farthest off
    worst_error: float = 0.0
    casting: str = ""  #: whose casting rules were followed


@dataclass(frozen=True, slots=True)
class TrainingCurve:
    """One training run; what ended it is a result."""

    seed: int
    status: str  #: ok, diverged, skipped (every update was), raised
    losses: tuple[float, ...]
    final_loss: float  #: mean of the last tenth
    skipped: int = 0
    scale: float = 1.0  #: at the end
    validation_loss: float | None = None  #: in FP32
    validation_loss_low: float | None = None  #: in the training precision
    metric: float | None = None  #: in FP32, larger is better
    metric_low: float | None = None
    message: str = ""
    full_loss: float | None = None  #: training loss of the weights at the end, in FP32
    settling: int = 0  #: updates skipped on a copy until the scaler had settled; the run starts from there
    metrics: tuple[float, ...] = ()  #: in FP32, as training went on
    metric_steps: tuple[int, ...] = ()  #: after which each of them was read


@dataclass(frozen=True, slots=True)
class GpuTime:
    """What a step would take on a GPU that is not here: predicted."""

    gpu: str
    seconds: float
    phases: tuple[float, ...]  #: forward, backward, update, on the device
    bound: str  #: compute, memory, kernels or launches
    compiled: float  #: seconds with torch.compile
    fits: bool = True  #: into its memory
    heaviest: tuple[str, ...] = ()  #: operations that take most of it


@dataclass(frozen=True, slots=True)
class Row:
    """One precision in one case."""

    precision: str
    status: str = "ok"  #: ok, oom, overflow, unsupported, raised
    message: str = ""
    time: Time | None = None
    memory: Memory | None = None
    one_step: OneStep | None = None
    courses: tuple[TrainingCurve, ...] = ()
    scale: float | None = None  #: where the scaler settled before timing
    settling: int = 0  #: updates skipped until it had
    largest_batch: int | None = None  #: that fits the memory asked about, predicted
    gpu_times: tuple[GpuTime, ...] = ()
    flops: int | None = None  #: of a step, counted


@dataclass(frozen=True, slots=True)
class Reason:
    """Why low precision is not faster, or not as much as it could be."""

    code: str
    message: str
    evidence: str
    gain: str


@dataclass(frozen=True, slots=True)
class Case:
    """One setting of a sweep: what was run, and its rows."""

    batch_size: int
    mode: str = "train"  #: or infer
    checkpointing: bool = False
    channels_last: bool = False
    compiled: bool = False
    rows: tuple[Row, ...] = ()
    again: Time | None = None  #: FP32 a second time
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()  #: that were done
    tokens: int = 0  #: in a batch, where it is made of them
    compile_mode: str = ""  #: of torch.compile; "": its default
    optimizer: str = ""  #: fused, foreach or forloop; "": as the target makes it
    attention: str = ""  #: backend of scaled_dot_product_attention; "": torch chooses
    cuda_graphs: bool = False  #: forward and backward are captured once and replayed
    scaler: str = ""  #: initial scale and growth interval of GradScaler; "": its defaults
    ranks: int = 1
    parallel: str = ""  #: ddp or fsdp2, with several ranks

    @property
    def key(self) -> str:
        """Return what tells this case from the others, as people write it."""
        marks = [f"batch {self.batch_size}", self.mode if self.mode != "train" else ""]
        marks += ["checkpointing"] * self.checkpointing + ["channels_last"] * self.channels_last
        marks += [f"compiled {self.compile_mode}".rstrip()] * self.compiled
        marks += [f"{self.optimizer} optimizer"] * bool(self.optimizer)
        marks += [f"{self.attention} attention"] * bool(self.attention)
        marks += ["CUDA graphs"] * self.cuda_graphs + [f"scaler {self.scaler}"] * bool(self.scaler)
        marks += [f"{self.ranks} ranks {self.parallel}"] * (self.ranks > 1)
        return ", ".join(mark for mark in marks if mark)

    def row(self, precision: str) -> Row | None:
        """Return the row of a precision."""
        return next((row for row in self.rows if row.precision == precision), None)

    @property
    def splits(self) -> dict[str, Split]:
        """Return the predicted memory of each precision that has one."""
        known = ((row.precision, row.memory) for row in self.rows if row.memory is not None)
        return {precision: memory.predicted for precision, memory in known if memory.predicted is not None}

    @property
    def roles(self) -> list[str]:
        """Return what the memory of any precision is for."""
        return list(dict.fromkeys(role for split in self.splits.values() for role in split.roles))

    @property
    def floor(self) -> Interval | None:
        """Return what FP32 measured twice seems to differ by."""
        base = self.row(BASE)
        if base is None or base.time is None or self.again is None:
            return None
        return self.again.speedup(base.time)

    def speedup(self, row: Row) -> Interval | None:
        """Return how many times as fast as FP32 a row is; None where either was not timed."""
        base = self.row(BASE)
        if base is None or base.time is None or row.time is None or row is base:
            return None
        return row.time.speedup(base.time)

    def memory_ratio(self, row: Row) -> float | None:
        """Return the peak on CUDA over that of FP32, both measured or else both predicted."""
        base = self.row(BASE)
        if base is None or base.memory is None or row.memory is None:
            return None
        for own, whole in zip(row.memory.peaks, base.memory.peaks, strict=True):
            if own is not None and whole:
                return own / whole
        return None


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything one run of `ampcheck bench` found."""

    target: str
    cases: tuple[Case, ...] = ()
    command: str = ""  #: repeats it
    margin: float = 0.0  #: of an equivalence, as a share of FP32's result
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""  #: of what was asked for; partial results of the same can be gone on with
    interrupted: bool = False
    random_labels: bool = False  #: labels or loss were made up, so that training can only memorise noise
    settings: Mapping[str, str] = field(default_factory=dict)  #: that results of two benches have to share
    epoch: int | None = None  #: samples of an epoch
    price: float | None = None  #: of an hour of the GPU

    @property
    def cuda(self) -> bool:
        """Tell whether this was measured on a GPU."""
        return self.environment.get("device", "CPU") != "CPU"
