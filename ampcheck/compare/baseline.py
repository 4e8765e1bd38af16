"""A baseline: what an audit found and was accepted, small enough to be read in a review, without line numbers.

A file holds the baselines of several audits by name: dtypes and ranges of every layer, the findings that were
accepted, each with the reason, and the plan. Ranges are those of the FP32 run: no overflow distorts them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from getpass import getuser
from math import log2
from typing import ClassVar

from ampcheck.diagnose.verdict import judged
from ampcheck.values.codec import Shape
from ampcheck.values.findings import Finding, How, Severity, Suppressed
from ampcheck.values.formats import SHORT_DTYPE
from ampcheck.values.plan import Plan
from ampcheck.values.report import Report
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Phase

#: Where `ampcheck baseline` writes when nothing else is said.
FILE = "ampcheck-baseline.json"
#: The share of elements below the lower end of a range: the very smallest element is a matter of chance.
_TAIL = 0.01


@dataclass(frozen=True, slots=True)
class Span:
    """Where the magnitudes of some elements lie, as powers of two."""

    JSON: ClassVar = Shape(row=True)
    low: float  #: above the smallest hundredth of them
    typical: float  #: their median
    top: float  #: the largest


@dataclass(frozen=True, slots=True)
class Layer:
    """One module's own operations."""

    dtypes: tuple[str, ...]  #: of the forward's results in the low-precision run, sorted
    forward: Span | None  #: None: nothing but zeros
    backward: Span | None  #: without the loss scale


@dataclass(frozen=True, slots=True)
class Accepted:
    """Findings of one rule at one operation of one module."""

    code: str
    name: str
    module: str
    op: str
    severity: Severity  #: the worst of them
    count: int = 1
    reason: str = ""  #: why they are accepted; without one they are not

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what it is recognised by."""
        return self.code, self.module, self.op


@dataclass(frozen=True, slots=True)
class Planned:
    """What a plan changes."""

    JSON: ClassVar = Shape(optional=("bf16_modules", "way"))
    precision: str = ""
    fp32_modules: tuple[str, ...] = ()
    fp32_files: tuple[str, ...] = ()  #: one for each line
    log2_init_scale: float | None = None
    bf16_modules: tuple[str, ...] = ()  #: under a recipe
    way: str = ""  #: its recipe, what modules in FP32 give, inputs that are not cast


@dataclass(frozen=True, slots=True)
class Baseline:
    """What one audit is held against."""

    log2_scale: int
    tried: bool  #: the step was run again to try what is claimed, which decides on severities
    plan: Planned | None
    findings: tuple[Accepted, ...]
    layers: Mapping[str, Layer]  #: in order of execution


def accepted_by() -> str:
    """Return the reason that stands where nobody gave one: when something was accepted, and by whom."""
    try:
        person = getuser()
    except (KeyError, OSError, ImportError):  # no such user, as in some containers
        person = "an unknown user"
    return f"accepted by {person} on {date.today():%Y-%m-%d}, as it was"  # noqa: DTZ011  # their own day


def name(report: Report) -> str:
    """Return what an audit is called in a file."""
    return f"{report.target} {setting(report)}"


def setting(report: Report) -> str:
    """Return what was audited: a precision, and what is not training under autocast; or a recipe."""
    if report.recipes is not None:
        return report.recipes.asked
    weights, used = report.cast == "weights", report.mode == "infer"
    return " ".join([report.precision, *["weights"] * weights, *["inference"] * used])


def accept(report: Report, old: Baseline | None = None, reason: str = "") -> Baseline:
    """Return the baseline that a report passes; reasons given before are kept, new findings get the one given."""
    known = {accepted.key: accepted.reason for accepted in (old.findings if old else ())}
    findings = tuple(
        replace(accepted, reason=known.get(accepted.key) or reason) for accepted in grouped(report.findings)
    )
    plan = None if report.plan is None else _planned(report.plan)
    return Baseline(report.log2_scale, plan is not None, plan, findings, layers(report))


def _planned(plan: Plan) -> Planned:
    scale = plan.scaler.init_scale if plan.scaler else 0.0
    return Planned(
        plan.precision,
        tuple(sorted(plan.fp32_modules)),
        tuple(sorted(line.rpartition(":")[0] for line in plan.fp32_lines)),
        log2(scale) if scale > 0 else None,
        tuple(sorted(plan.bf16_modules)),
        _way(plan),
    )


def _way(plan: Plan) -> str:
    gemms = f"{' and '.join(plan.bf16_gemms)} in bf16" if plan.bf16_gemms else ""
    inputs = f"not cast: {', '.join(plan.keep_inputs)}" if plan.keep_inputs else ""
    carried = "state in FP32" if plan.keep_state else ""
    return "; ".join(text for text in (plan.recipe, gemms, plan.outputs, inputs, carried) if text)


def grouped(findings: Iterable[Finding]) -> tuple[Accepted, ...]:
    """Return findings as a baseline keeps them, those of one rule at one operation together."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(place(finding), []).append(finding)
    return tuple(
        Accepted(
            code,
            members[0].name,
            module,
            op,
            min((finding.severity for finding in members), key=lambda severity: severity.rank),
            len(members),
        )
        for (code, module, op), members in sorted(groups.items())
    )


def place(finding: Finding) -> tuple[str, str, str]:
    """Return what a finding is recognised by: its rule, module and operation, never its line."""
    origin = finding.origin
    return (finding.code, origin.module, origin.op or origin.slot) if origin else (finding.code, "", "")


def held(report: Report, baseline: Baseline) -> Report:
    """Return the report with what the baseline accepts, and gives a reason for, no longer counting."""
    left = Counter({accepted.key: accepted.count for accepted in baseline.findings if accepted.reason})
    known = {accepted.key: accepted for accepted in baseline.findings}
    counting, dropped = [], []
    for finding in report.findings:
        accepted = known.get(place(finding))
        if accepted is None or not left[accepted.key] or worse(finding.severity, accepted.severity):
            counting.append(finding)
        else:
            left[accepted.key] -= 1
            dropped.append(Suppressed(finding, How.BASELINE, "", accepted.reason))
    if not dropped:
        return report
    return judged(replace(report, findings=tuple(counting), suppressed=(*report.suppressed, *dropped)))


def worse(severity: Severity, than: Severity) -> bool:
    """Tell whether a severity is worse than another."""
    return severity.rank < than.rank


def layers(report: Report) -> dict[str, Layer]:
    """Return the modules with operations of their own, in order of execution."""

    def results(phase: Phase) -> dict[str, TensorStats]:
        return report.reference.by(lambda site: site.module if site.op and site.phase is phase else None)

    forward, backward = results(Phase.FORWARD), results(Phase.BACKWARD)
    dtypes: dict[str, set[str]] = {}
    for site in report.low.sites:
        if site.op and site.phase is Phase.FORWARD:
            dtypes.setdefault(site.module, set()).add(SHORT_DTYPE.get(site.dtype, site.dtype))
    nothing = TensorStats()
    return {
        module: Layer(
            tuple(sorted(dtypes.get(module, ()))),
            span(forward.get(module, nothing)),
            span(backward.get(module, nothing)),
        )
        for module in dict.fromkeys([*forward, *backward])
    }


def span(stats: TensorStats) -> Span | None:
    """Return where magnitudes lie, to a hundredth of an octave.

    >>> span(TensorStats(-3, (50, 50), amax=0.4))
    Span(low=-2.98, typical=-2.0, top=-1.32)
    """
    if not stats.nonzero:
        return None
    ends = (_quantile(stats, _TAIL), _quantile(stats, 0.5), log2(stats.amax) if stats.amax > 0 else 0.0)
    return Span(*(round(end, 2) for end in ends))


def _quantile(stats: TensorStats, share: float) -> float:
    """Return the power of two below which a share of the elements lies; within an octave they are taken as even."""
    wanted = share * stats.nonzero
    seen = 0
    for exponent, count in stats.exponents():
        if count and seen + count >= wanted:
            return exponent + (wanted - seen) / count
        seen += count
    return float(stats.highest + 1)
