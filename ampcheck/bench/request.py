"""What to bench: one value, whoever asks."""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from ampcheck.bench.result import BASE, PRECISIONS, Case
from ampcheck.values.plan import Plan, ScalerPlan

PARTS = ("time", "memory", "accuracy", "training")
OFF = "off"
#: What torch.compile is asked for: nothing, its default, or one of its modes.
COMPILED = (OFF, "on", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
OPTIMIZERS = ("fused", "foreach", "forloop")
#: Backends of scaled_dot_product_attention by their names in torch.
ATTENTION = {
    "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION", "math": "MATH",
}  # fmt: skip
PARALLEL = ("ddp", "fsdp2")
#: Steps after which GradScaler tries a larger scale, where nothing else is said.
GROWTH = ScalerPlan(1.0).growth_interval


@dataclass(frozen=True, slots=True)
class Request:
    """The precisions, the settings to sweep over, and how long to take."""

    precisions: tuple[str, ...] = ("fp32", "tf32", "fp16", "amp", "bf16")
    parts: tuple[str, ...] = PARTS
    batch_sizes: tuple[int | None, ...] = (None,)  #: None: the target's own
    modes: tuple[str, ...] = ("train",)
    checkpointing: tuple[bool, ...] = (False,)
    channels_last: tuple[bool, ...] = (False,)
    compiled: tuple[str, ...] = (OFF,)  #: off, on, or a mode of torch.compile
    steps: int = 30  #: of a training run
    seeds: int | None = None  #: None: five, or fewer where they take too long
    margin: float = 0.02  #: of an equivalence, as a share of FP32's result
    budget: float = 20.0  #: seconds to time a case
    clip: float | None = None
    room: int | None = None  #: bytes of a GPU, to look for the largest batch that fits
    plan: Plan | None = None
    gpus: tuple[str, ...] = ()  #: to predict times for
    optimizers: tuple[str, ...] = ("",)  #: of OPTIMIZERS; "": as the target makes it
    attention: tuple[str, ...] = ("",)  #: of ATTENTION; "": torch chooses
    cuda_graphs: tuple[bool, ...] = (False,)
    scalers: tuple[str, ...] = ("",)  #: such as 2^16/2000: initial scale and growth interval
    ranks: tuple[int, ...] = (1,)
    parallel: tuple[str, ...] = ("ddp",)  #: how several ranks share the work, of PARALLEL

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name, known in (
            ("precisions", tuple(PRECISIONS)),
            ("parts", PARTS),
            ("modes", ("train", "infer")),
            ("compiled", COMPILED),
            ("optimizers", ("", *OPTIMIZERS)),
            ("attention", ("", *ATTENTION)),
            ("parallel", PARALLEL),
        ):
            unknown = [item for item in getattr(self, name) if item not in known]
            if unknown:
                raise ValueError(f"expected {name} of {', '.join(known)}, got {', '.join(unknown)}")
        if self.steps < 1 or (self.seeds is not None and self.seeds < 1):
            raise ValueError(f"expected at least one step and one seed, got {self.steps} and {self.seeds}")
        if not 0 < self.margin < math.inf:
            raise ValueError(f"expected a margin above zero, got {self.margin:g}")

    @property
    def settings(self) -> dict[str, str]:
        """Return what two benches have to share for their results to be compared."""
        plan = "none" if self.plan is None else hashlib.sha256(repr(self.plan).encode()).hexdigest()[:8]
        clip = "off" if self.clip is None else f"{self.clip:g}"
        return {"steps": str(self.steps), "margin": f"{self.margin:g}", "clip": clip, "plan": plan}

    @property
    def rows(self) -> tuple[str, ...]:
        """Return the precisions, FP32 first, as all others are compared with it."""
        wanted = dict.fromkeys((BASE, *self.precisions))
        if self.plan is not None:
            wanted["plan"] = None
        return tuple(name for name in PRECISIONS if name in wanted)

    def cases(self) -> Iterator[Case]:
        """Yield every setting of the sweep, without rows; a batch size of 0 is the target's own."""
        swept = (self.batch_sizes, self.modes, self.checkpointing, self.channels_last, self.compiled)
        for size, mode, saves, last, compiled in itertools.product(*swept):
            if not (mode == "infer" and saves):  # nothing is kept that could be computed again
                name = "" if compiled in {OFF, "on"} else compiled
                yield from self._swept(Case(size or 0, mode, saves, last, compiled != OFF, compile_mode=name))

    def _swept(self, case: Case) -> Iterator[Case]:
        """Yield a case in every setting of the optimizer, the attention, the graphs, the scaler and the ranks."""
        trains = case.mode == "train"
        spread = [(ranks, name) for ranks in self.ranks for name in (self.parallel if ranks > 1 else ("",))]
        swept = (
            self.optimizers if trains else ("",), self.attention, self.cuda_graphs,
            self.scalers if trains else ("",), spread,
        )  # fmt: skip
        for optimizer, attention, graphs, scaler, (ranks, parallel) in itertools.product(*swept):
            yield replace(
                case, optimizer=optimizer, attention=attention, cuda_graphs=graphs, scaler=scaler,
                ranks=ranks, parallel=parallel,
            )  # fmt: skip

    def fingerprint(self, *others: object) -> str:
        """Return what is the same only where the same was asked for; parts of it can be done one by one."""
        text = json.dumps([asdict(self) | {"parts": PARTS}, [str(other) for other in others]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def scaler_of(text: str) -> tuple[float, int]:
    """Return the initial scale and the growth interval of a scaler.

    >>> scaler_of("2^10/200")
    (1024.0, 200)
    """
    scale, _, interval = text.partition("/")
    base, _, exponent = scale.partition("^")
    return float(base) ** int(exponent or 1), int(interval or GROWTH)
