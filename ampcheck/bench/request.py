"""What to bench: one value, whoever asks."""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ampcheck.bench.result import BASE, PRECISIONS, Case
from ampcheck.values.plan import Plan

PARTS = ("time", "memory", "accuracy", "training")


@dataclass(frozen=True, slots=True)
class Request:
    """The precisions, the settings to sweep over, and how long to take."""

    precisions: tuple[str, ...] = ("fp32", "tf32", "fp16", "amp", "bf16")
    parts: tuple[str, ...] = PARTS
    batch_sizes: tuple[int | None, ...] = (None,)  #: None: the target's own
    modes: tuple[str, ...] = ("train",)
    checkpointing: tuple[bool, ...] = (False,)
    channels_last: tuple[bool, ...] = (False,)
    compiled: tuple[bool, ...] = (False,)
    steps: int = 30  #: of a training run
    seeds: int | None = None  #: None: five, or fewer where they take too long
    margin: float = 0.02  #: of an equivalence, as a share of FP32's result
    budget: float = 20.0  #: seconds to time a case
    clip: float | None = None
    room: int | None = None  #: bytes of a GPU, to look for the largest batch that fits
    plan: Plan | None = None
    gpus: tuple[str, ...] = ()  #: to predict times for

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name, known in (
            ("precisions", tuple(PRECISIONS)),
            ("parts", PARTS),
            ("modes", ("train", "infer")),
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
                yield Case(size or 0, mode, saves, last, compiled)

    def fingerprint(self, *others: object) -> str:
        """Return what is the same only where the same was asked for; parts of it can be done one by one."""
        text = json.dumps([asdict(self) | {"parts": PARTS}, [str(other) for other in others]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
