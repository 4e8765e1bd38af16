"""What renderers say of a report in words: what was run, the numbers of findings, what the loss scale did."""

from ampcheck.diagnose.subjects import model_words
from ampcheck.diagnose.tables import measured_loss, scale_curve
from ampcheck.diagnose.verdict import came_out_well
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import SHORT_DTYPE
from ampcheck.values.plan import ScalerPlan
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase
from ampcheck.values.wording import clean, clean_line, count, measure, percent, plural, power, scale_words

#: Ranks of a finding that are named; of more, how many there are.
NAMED_RANKS = 3
#: Other lines of a finding that are named.
NAMED_LINES = 3


def facts(report: Report) -> list[str]:
    """Return what was run, where, in a few words each, the most telling first."""
    models = model_words(report)
    shown = [
        models if models != clean(report.target) else "",
        report.precision if report.recipes is None else report.recipes.asked,
        f"loss scale {power(report.log2_scale)}" if report.log2_scale else _no_scale(report),
    ]
    if report.mode == "infer" or report.cast == "weights":
        shown = [f"{report.precision} {report.cast}", "inference" if report.mode == "infer" else "training"]
    shown += [clean(report.environment.get("device", ""))]
    shown += [f"torch {clean(report.environment['torch'])}"] if "torch" in report.environment else []
    shown += [plural(len(report.low.steps), "step")] if report.low.steps else []
    shown += [plural(len(report.ranks), "rank")] if report.ranks else []
    return [fact for fact in shown if fact]


def _no_scale(report: Report) -> str:
    loop = report.loop
    if loop is None or not (loop.scaling or any(scale > 1.0 for scale in loop.first_scales.values())):
        return "no loss scale"
    if loop.scaling:
        return "loss scale unknown"
    return f"loss scale {scale_words(loop.only_scale)}" if loop.only_scale else "changing loss scale"


def operation(finding: Finding) -> list[str]:
    """Return what a finding's first place computes, and in what; nothing for lines that lie in no module."""
    site = finding.origin
    if site is None or not site.dtype:
        return []
    return [
        part for part in (clean(site.op or site.slot), SHORT_DTYPE.get(site.dtype, clean(site.dtype))) if part
    ]


def figures(finding: Finding) -> list[str]:
    """Return the numbers of a finding with their names."""
    more = len(finding.sites) - 1
    named = [measure(name, value) for name, value in finding.numbers.items()]
    named += [_other_lines(finding) or plural(more, "more place")] if more > 0 else []
    return [*named, f"on {_ranks(finding)}"] if finding.ranks else named


def _other_lines(finding: Finding) -> str:
    """Return the lines of the other places, where they are a few of the same file; '' where they are not."""
    first, *others = finding.sites
    lines = sorted({site.line for site in others} - {first.line})
    here = all(site.file == first.file and site.line for site in others)
    if not here or not 0 < len(lines) <= NAMED_LINES:
        return ""
    return f"also at line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}"


def _ranks(finding: Finding) -> str:
    names = [clean(name) for name in finding.ranks]
    return ", ".join(names) if len(names) <= NAMED_RANKS else plural(len(names), "rank")


def consequences(finding: Finding) -> list[str]:
    """Return what else was found and goes away with a finding's cause, a sentence each."""
    return [f"goes away with it: {clean(follower)}" for follower in finding.follows]


def corrected(finding: Finding) -> list[str]:
    """Return the lines of code as they should be."""
    return [clean_line(line) for line in finding.fix]


def tally(report: Report) -> str:
    """Return how many findings there are of each severity, the worst first; '' where there are none."""
    numbers = [(kind, sum(finding.severity is kind for finding in report.findings)) for kind in Severity]
    return " · ".join(plural(number, str(kind)) for kind, number in numbers if number)


def measured(report: Report) -> str:
    """Return what the loss scale in use did to the gradients, and from which one on they overflow."""
    loss = measured_loss(report, Phase.BACKWARD)
    lost = f"{percent(loss.share)} of {count(loss.live)} elements underflow" if loss.lost else "no underflow"
    over = next((point for point in scale_curve(report) if point.overflowed.low), None)
    first = (
        f"the first to overflow{_without_plan(report)} is {power(over.log2_scale)}"
        if over is not None
        else "none of these overflows"
    )
    if over is not None and over.log2_scale <= report.log2_scale and came_out_well(report):
        elements = plural(over.overflowed.low, "element")
        first = f"from {power(over.log2_scale)} on {elements} overflow; every weight gradient stays finite"
    return f"measured at {power(report.log2_scale)}: {lost}; {first}"


def _without_plan(report: Report) -> str:
    """Return what tells a prediction for the model as it is from one for the plan, where both are shown."""
    kept = report.plan is not None and (report.plan.fp32_modules or report.plan.fp32_lines)
    return " without the plan" if kept else ""


def scaler_call(scaler: ScalerPlan) -> str:
    """Return the call a person would write."""
    default = ScalerPlan(scaler.init_scale)
    names = ("growth_factor", "backoff_factor", "growth_interval")
    others = [name for name in names if getattr(scaler, name) != getattr(default, name)]
    arguments = [f"{name}={getattr(scaler, name):g}" for name in others]
    scale = scale_words(scaler.init_scale).replace("^", "**")
    return f"GradScaler({', '.join([f'init_scale={scale}', *arguments])})"
