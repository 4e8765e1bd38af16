"""A report: everything an audit found, as one value that renderers turn into text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path

from ampcheck.errors import ReportError
from ampcheck.values.codec import SPARSE, Shape
from ampcheck.values.doubts import Doubt
from ampcheck.values.findings import Finding, Severity, Suppressed
from ampcheck.values.formats import FORMATS, Format
from ampcheck.values.loop import Loop, ScaleEvent
from ampcheck.values.maker import Maker
from ampcheck.values.outcome import Outcome
from ampcheck.values.plan import Claim, Plan
from ampcheck.values.recipe_audit import InUse, RecipeAudit
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import ErrorJump, PairError, Phase, Site, Stored, Trace, UpdateLoss, total
from ampcheck.values.verdict import NOT_JUDGED, Verdict
from ampcheck.values.wording import plural


@dataclass(frozen=True, slots=True)
class Rank:
    """One part of a merged report; the runs' steps lie rank after rank."""

    JSON = SPARSE

    name: str
    steps: int  #: of the low-precision run
    reference_steps: int
    first_scales: Mapping[str, float] = field(default_factory=dict)  #: of its scalers, by label
    scales: tuple[ScaleEvent, ...] = ()  #: changes of the loss scale there, and skipped steps


@dataclass(frozen=True, slots=True)
class Bought:
    """What a training step is predicted to need on a GPU, and how much faster than FP32 it is there."""

    batch_size: int
    reference_peak: int  #: bytes of FP32 at the peak
    peak: int  #: bytes in low precision, with the plan
    gpu: str = ""  #: that the time is predicted for; "" where none is
    faster: tuple[float, float, float] = (1.0, 1.0, 1.0)  #: times as fast as FP32, with the range of it


@dataclass(frozen=True, slots=True)
class Report:
    """The same step recorded twice, in FP32 and in low precision, and what follows from the difference."""

    JSON = Shape(
        optional=("placed", "bought", "mode", "cast", "stored", "recipes", "in_use", "doubts", "makers"),
        also={
            "scale": (float, lambda report: 2.0**report.log2_scale),
            "not_audited": (Mapping[str, int], lambda report: report.not_audited),
        },
    )

    target: str
    precision: str  #: fp16 or bf16
    log2_scale: int  #: of the loss scale that the low-precision run used
    reference: Trace  #: the FP32 run
    low: Trace  #: the low-precision run
    errors: Mapping[Site, PairError] = field(default_factory=dict)  #: by site of the low-precision run
    findings: tuple[Finding, ...] = ()  #: that count, most important first
    verdict: Verdict = NOT_JUDGED
    stand_in_loss: bool = False  #: the loss is ampcheck's, so gradient magnitudes are not the user's
    scaling_open: bool = False  #: the loss is the user's, and nothing says which loss scale goes with it
    refused_scales: tuple[int, ...] = ()  #: log2 of larger loss scales tried first, which overflowed
    notes: tuple[str, ...] = ()  #: what was assumed
    environment: Mapping[str, str] = field(default_factory=dict)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)  #: re-runs: settled, unscaled
    error_jumps: tuple[ErrorJump, ...] = ()  #: where errors begin in the forward, in order of execution
    placed: Site | None = None  #: where the bits are lost, where a re-run with that line in FP32 says so
    updates: tuple[UpdateLoss, ...] = ()  #: tensors held in half precision, after a few optimizer steps
    plan: Plan | None = None
    claims: tuple[Claim, ...] = ()  #: what re-running said of the plan's claims
    patch: str = ""  #: the plan as a diff against the user's file, or as lines to paste
    advice: tuple[str, ...] = ()  #: sentences: what to expect of the plan
    #: what the training loop of a script did; None where a step was audited by itself
    loop: Loop | None = None
    suppressed: tuple[Suppressed, ...] = ()  #: findings that were kept from counting, in their order
    ranks: tuple[Rank, ...] = ()  #: what it was merged from, nothing where it was not
    mode: str = "train"  #: or infer: forwards alone, judged by what they give
    cast: str = "autocast"  #: or weights: the model itself was cast
    stored: tuple[Stored, ...] = ()  #: stored numbers that the cast itself ruins, as a re-run has proved
    recipes: RecipeAudit | None = None  #: what FP8 and FP4 recipes did to the step, beside bf16
    in_use: tuple[InUse, ...] = ()  #: layers that a script trains in FP8 already
    makers: tuple[Maker, ...] = ()  #: lines that make what the script holds in half precision
    doubts: tuple[Doubt, ...] = ()  #: what the reference took from a script, and what that may hide
    bought: Bought | None = None  #: what low precision is predicted to buy on a GPU

    @property
    def format(self) -> Format:
        """Return the low-precision format."""
        return FORMATS[self.precision]

    @property
    def dtype(self) -> str:
        """Return the low-precision dtype as sites write it."""
        return {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[self.precision]

    @property
    def dry(self) -> bool:
        """Tell whether the step was run without values, for its dtypes and casts alone."""
        return bool(self.low.elements)

    @property
    def judgeable(self) -> bool:
        """Tell whether FP32 came to a finite loss in every step: where it did not, there is nothing to hold against.

        In inference a step has no loss: what stands there is 0, or NaN where FP32 gave no finite number.
        """
        return self.loop is not None or all(isfinite(step.loss) for step in self.reference.steps)

    @property
    def worst(self) -> Severity | None:
        """Return the worst severity among the findings, None when there are none."""
        return min((finding.severity for finding in self.findings), key=lambda s: s.rank, default=None)

    @property
    def not_audited(self) -> Mapping[str, int]:
        """Return what was not seen, and how often in one run."""
        return {**self.reference.not_audited, **self.low.not_audited}

    @property
    def random_weights(self) -> bool:
        """Tell whether the weights are known to be random."""
        return any(note.startswith("weights are random") for note in self.notes)

    def save(self, path: str | Path) -> None:
        """Write this to a file in the format of its ending: .json, .html, .md, .txt, .csv, .sarif or .xml."""
        PRESENTATION.save(self, path)

    def __str__(self) -> str:
        """Return what the terminal shows."""
        return PRESENTATION.text(self)

    def __repr__(self) -> str:
        """Return one line: a whole report has thousands of numbers."""
        return f"<Report of {self.target!r} in {self.precision}: {plural(len(self.findings), 'finding')}>"

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, for notebooks."""
        return PRESENTATION.notebook(self)


def _unavailable(_: Report, path: str | Path) -> None:
    raise ReportError(
        f"a report needs its renderers to be saved as {path}; import ampcheck.renderers.saving first"
    )


@dataclass(slots=True)
class Presentation:
    """What a report looks like. `ampcheck.renderers` fills this in, so that values import nothing above them."""

    text: Callable[[Report], str] = repr
    notebook: Callable[[Report], str] = repr
    save: Callable[[Report, str | Path], None] = _unavailable


PRESENTATION = Presentation()


def by_place(trace: Trace) -> dict[Site, TensorStats]:
    """Return the statistics by site without its dtype, so that two precisions can be compared."""
    return total((site.place, stats) for site, stats in trace.sites.items())


def low_tensors(report: Report, phase: Phase) -> dict[Site, TensorStats]:
    """Return the FP32 run's statistics of every result that the low run held in low precision.

    From these the effect of any loss scale follows by a shift. Tensors that only the low run has, such as
    casts, are left out: what they hold is counted where it was computed. Where a line runs an operation in both
    precisions, the part that stays in FP32 is taken off.
    """
    scale = report.log2_scale if phase is Phase.BACKWARD else 0
    sites = [(site, stats) for site, stats in report.low.sites.items() if site.op and site.phase is phase]
    held = {site.place for site, _ in sites if site.dtype == report.dtype}
    wide = total(
        (site.place, stats) for site, stats in sites if site.dtype != report.dtype and site.place in held
    )
    recorded = ((s.place, stats) for s, stats in report.reference.sites.items() if s.phase is phase and s.op)
    found = {place: stats for place, stats in total(recorded).items() if place in held}
    return {
        place: _less(stats, wide[place], scale) if place in wide else stats for place, stats in found.items()
    }


def _less(whole: TensorStats, part: TensorStats, log2_scale: int) -> TensorStats:
    """Return what is left of elements when a part, held at a loss scale, is taken off; never below nothing."""
    taken = {exponent - log2_scale: count for exponent, count in part.exponents()}
    counts = {exponent: max(0, count - taken.get(exponent, 0)) for exponent, count in whole.exponents()}
    top = max((exponent for exponent, count in counts.items() if count), default=whole.lowest)
    return TensorStats.from_counts(
        counts,
        zeros=max(0, whole.zeros - part.zeros),
        infs=whole.infs,
        nans=whole.nans,
        amax=min(whole.amax, 2.0 ** (top + 1)),
        sum_squares=max(0.0, whole.sum_squares - part.sum_squares * 4.0**-log2_scale),
    )


def low_backward(report: Report) -> dict[Site, TensorStats]:
    """Return the gradients of the FP32 run, without a scale, that the low run held in low precision."""
    return low_tensors(report, Phase.BACKWARD)


def at_scale(report: Report, log2_scale: int) -> Report:
    """Return a report with its scaled gradients as they would be at another loss scale: shifted."""
    by = log2_scale - report.log2_scale
    if not by:
        return report
    moved: dict[Site, TensorStats] = {}
    lost = 0
    for site, stats in report.low.sites.items():
        try:
            moved[site] = stats.scaled(by) if site.scaled else stats
        except ValueError:  # beyond what a histogram can say
            lost += 1
    missing = {"results on a rank whose loss scale has moved out of range": lost} if lost else {}
    low = replace(report.low, sites=moved, not_audited={**report.low.not_audited, **missing})
    return replace(report, low=low, log2_scale=log2_scale)
