"""How an audit is run: one value, whoever asks."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import frexp, isfinite

from ampcheck.values.plan import DEFAULT_LOG2_SCALE
from ampcheck.values.recipes import is_recipe, recipes

#: Hears in a few words what is being done.
Progress = Callable[[str], None]
PRECISIONS = ("fp16", "bf16", "auto")
MODES = ("auto", "train", "infer")
CASTS = ("auto", "autocast", "weights")


@dataclass(frozen=True, slots=True)
class Settings:
    """What to audit with; None leaves the choice to the audit."""

    precision: str = "fp16"  #: auto: fp16, or bf16 where fp16 needs help and bf16 does not
    log2_scale: int | None = None  #: None: as GradScaler would, 2**16 and down for fp16, none for bf16
    steps: int = 1
    verify: bool = True  #: re-run the step to try what is claimed and to look for a remedy
    verify_steps: int = 0  #: training steps over which the plan is compared with FP32
    budget: float = 60.0  #: seconds for the search of a remedy
    layers_only: bool = False  #: measure what enters and leaves modules, and no operation inside
    sample: int = 0  #: elements read of a tensor that has more; 0: all
    mode: str = "auto"  #: train, infer, or as the target shows
    cast: str = "auto"  #: autocast, weights, or as the target shows
    keep: tuple[str, ...] = ()  #: modules that are left in FP32 from the start

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.mode not in MODES:
            raise ValueError(f"expected a mode of {' or '.join(MODES)}, got {self.mode!r}")
        if self.cast not in CASTS:
            raise ValueError(f"expected a cast of {' or '.join(CASTS)}, got {self.cast!r}")
        parse_precision(self.precision)
        special = self.mode == "infer" or self.cast == "weights"
        if special and self.precision not in PRECISIONS:
            raise ValueError(
                f"expected fp16, bf16 or auto for mode infer or cast weights, got {self.precision!r}"
            )
        if self.steps < 1:
            raise ValueError(f"expected at least one step, got steps={self.steps!r}")
        if self.sample < 0:
            raise ValueError(f"expected a number of elements, or 0 for all, got sample={self.sample!r}")

    @property
    def first_log2_scale(self) -> int:
        """Return the loss scale to begin with: where GradScaler starts, unless one was asked for."""
        if self.log2_scale is not None:
            return self.log2_scale
        return DEFAULT_LOG2_SCALE if self.precision == "fp16" else 0


def parse_precision(text: str) -> str:
    """Return a precision once it is known to be one: fp16, bf16, auto, fp8, or fp8 with a recipe."""
    if is_recipe(text):
        recipes(text)
    elif text not in PRECISIONS:
        raise ValueError(f"expected a precision of {', '.join(PRECISIONS)}, fp8 or fp8:RECIPE, got {text!r}")
    return text


def parse_scale(text: str) -> int | None:
    """Return log2 of a loss scale written as 1024, 2^10 or 2**10; None for auto.

    >>> parse_scale("2^10"), parse_scale("1024"), parse_scale("0.5")
    (10, 10, -1)
    """
    if text == "auto":
        return None
    power = re.fullmatch(r"2(?:\^|\*\*)(-?\d+)", text)
    if power:
        return int(power[1])
    value = float(text)
    mantissa, exponent = frexp(value) if isfinite(value) and value > 0 else (0.0, 0)
    if mantissa != 0.5:  # noqa: PLR2004 - frexp of a power of two
        raise ValueError(f"expected a power of two such as 1024 or 2^10, got {text!r}")
    return exponent - 1


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which steps of a script are recorded in full."""

    first: int = 2  #: steps from the beginning
    every: int = 50  #: then one in so many; 0 for none
    steps: frozenset[int] | None = None  #: these and no others
    most: int = 64  #: recorded steps in all
    beside: str = "few"  #: FP32 runs beside few of them, or all
    slowest: float = 20.0  #: a recorded step that takes so many times as long as the others is abandoned

    def wants(self, step: int, in_turn: int = 1) -> bool:
        """Tell whether a step is recorded; optimizers that step in turn have each of theirs."""
        if self.steps is not None:
            return step in self.steps
        return step < self.first * in_turn or bool(self.every and step % (self.every * in_turn) < in_turn)

    def compares(self, step: int, in_turn: int = 1, *, matches_reference: bool = False) -> bool:
        """Tell whether FP32 runs beside a recorded step, which costs more than the step.

        Of few it does in the first ones, two or more of them, and then ever more rarely: of one in 50, in the 50th,
        200th, 800th. If all so far matched the reference, they stand for those after them up to the 200th.
        """
        turn = step // in_turn
        if self.beside == "all" or self.steps is not None or turn == 0:
            return True
        nth = turn // self.every if self.every else 0
        if turn < self.first or nth == 1:
            return not matches_reference
        return nth.bit_count() == 1 and nth.bit_length() % 2 == 1
