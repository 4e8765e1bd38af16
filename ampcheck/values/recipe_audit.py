"""What FP8 and FP4 recipes do to a training step: one outcome a recipe, beside the same step in bf16."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan

from ampcheck.values.stats import TensorStats
from ampcheck.values.wording import percent, plural

#: Relative L2 error of one parameter's gradient against bf16, from which on a recipe harms it: the update turns by
#: more than twenty degrees there.
HARM = 0.4
#: The same of a step that a remedy has healed.
HEALED = 0.3
#: A four-bit format rounds by a tenth in each operand, so that healthy steps come close to 0.6.
FOUR_BIT_HARM, FOUR_BIT_HEALED = 0.75, 0.6
#: Error of bf16 against FP32 from which on bf16 itself does not determine a parameter's gradient.
UNDETERMINED = 0.2


@dataclass(frozen=True, slots=True)
class OperandStats:
    """One operand of one GEMM of a layer, as a format was given it: scaled."""

    module: str
    parameter: str  #: '' where the weight is computed
    gemm: str  #: fprop, dgrad or wgrad
    operand: str  #: input, weight or grad_output
    format: str
    scaled: TensorStats
    underflowed: int  #: not zero before, zero in the format
    saturated: int  #: beyond the largest number of the format
    error: float  #: of the rounded tensor, relative L2
    scales: tuple[float, float]  #: the smallest and the largest scale in use
    amax: tuple[float, ...] = ()  #: of the steps before, for delayed scaling

    @property
    def place(self) -> str:
        """Return whose operand it is, and of which GEMM."""
        return f"{self.module or '(root)'} {self.gemm} {self.operand.replace('_', ' ')}"

    @property
    def lost(self) -> float:
        """Return a figure by which operands are ranked: the larger, the more the format loses of it."""
        return max(self.underflow_share, self.saturated_share) + self.error

    @property
    def underflow_share(self) -> float:
        """Return the share of what is not zero that becomes zero."""
        return self.underflowed / self.scaled.nonzero if self.scaled.nonzero else 0.0

    @property
    def saturated_share(self) -> float:
        """Return the share of what is not zero that is cut off."""
        return self.saturated / self.scaled.nonzero if self.scaled.nonzero else 0.0


@dataclass(frozen=True, slots=True)
class RecipeOutcome:
    """One step under a recipe, against the same step in bf16."""

    recipe: str
    errors: Mapping[str, float] = field(default_factory=dict)  #: by parameter, those that bf16 determines
    loss: float = 0.0
    raised: str = ""  #: what the user's code raised
    four_bit: bool = False

    @property
    def worst(self) -> tuple[str, float]:
        """Return the parameter whose gradient is furthest off, and by how much."""
        return max(self.errors.items(), key=lambda row: _size(row[1]), default=("", 0.0))

    @property
    def harmed(self) -> bool:
        """Tell whether a gradient is off by too much."""
        return bool(self.raised) or _size(self.worst[1]) >= (FOUR_BIT_HARM if self.four_bit else HARM)

    @property
    def healed(self) -> bool:
        """Tell whether every gradient is close to that of bf16."""
        limit = FOUR_BIT_HEALED if self.four_bit else HEALED
        return not self.raised and _size(self.worst[1]) <= limit

    @property
    def words(self) -> str:
        """Return what happened in a few words."""
        if self.raised:
            return f"raises {self.raised.splitlines()[0]}"
        name, error = self.worst
        if not name:
            return "no gradient was compared"
        limit = FOUR_BIT_HARM if self.four_bit else HARM
        off = sum(_size(value) >= limit for value in self.errors.values())
        worst = "is not finite" if _size(error) == float("inf") else f"is off by {percent(error)}"
        return f"the gradient of {name} {worst}" + (
            f", {plural(off, 'parameter')} over the limit" if off > 1 else ""
        )


def _size(error: float) -> float:
    return float("inf") if isnan(error) else error


@dataclass(frozen=True, slots=True)
class RecipePlan:
    """What to change so that a recipe trains as bf16 does."""

    recipe: str  #: as asked for, or the one to take instead
    bf16_modules: tuple[str, ...] = ()  #: whose GEMMs stay in bf16
    #: that alone have to stay in bf16, in these modules or in all; nothing: all three
    gemms: tuple[str, ...] = ()
    cost: float = 0.0  #: share of the floating-point operations of linear layers that stays in bf16
    healed: bool = False
    minimal: bool = False  #: leaving out any one module was tried and does not heal
    diffuse: bool = False  #: no few layers are to blame
    trials: int = 0


@dataclass(frozen=True, slots=True)
class RecipeResult:
    """What became of one recipe."""

    outcome: RecipeOutcome
    #: worst error with one module alone in the format
    alone: Mapping[str, float] = field(default_factory=dict)
    plan: RecipePlan | None = None  #: None where nothing has to change, or nothing was tried
    planned: RecipeOutcome | None = None  #: the step with the plan
    fresh: RecipeOutcome | None = None  #: another batch with the plan
    trained: RecipeOutcome | None = None  #: the recipe as it is after a short training in bf16
    ends_as_bf16: bool | None = None  #: a short training under the recipe as it is; None where there was none
    operands: tuple[OperandStats, ...] = ()
    misfits: Mapping[str, str] = field(default_factory=dict)  #: modules whose dimensions do not fit, and why

    @property
    def harmed(self) -> bool:
        """Tell whether the recipe does harm as it is; of four bits a short training says more than one step."""
        if self.outcome.four_bit and self.ends_as_bf16 is not None:
            return not self.ends_as_bf16
        return self.outcome.harmed or (self.trained is not None and self.trained.harmed)

    @property
    def harm(self) -> RecipeOutcome:
        """Return the step that shows the harm."""
        later = self.trained is not None and self.trained.harmed and not self.outcome.harmed
        return self.trained if later and self.trained is not None else self.outcome


@dataclass(frozen=True, slots=True)
class InUse:
    """A layer that a script trains in FP8 already."""

    module: str
    library: str
    recipe: str = ""  #: '' where it cannot be shown from the layer
    note: str = ""
    runs: bool = True  #: its own forward is called
    judged: bool = False  #: a report of its own says what the rounding does


@dataclass(frozen=True, slots=True)
class RecipeAudit:
    """A step under one or more recipes."""

    asked: str  #: as typed: fp8, or fp8:te-delayed
    results: tuple[RecipeResult, ...] = ()
    loss: float = 0.0  #: in bf16
    #: parameters that bf16 does not determine
    undetermined: Mapping[str, float] = field(default_factory=dict)
    judged: tuple[str, ...] = ()  #: parameters that it determines
    #: shapes of the weights met, by module
    layers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: modules that a swap of nn.Linear misses or breaks, and why
    missed: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)  #: products that were not rounded, and why
    #: of a gradient between batches, relative, by parameter
    noise: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0  #: of the short training in bf16
