"""The lines below a verdict: what to do, why, and what it buys; the same words in terminal, page and Markdown."""

import re
from collections.abc import Iterator

from ampcheck.diagnose.caveats import settled
from ampcheck.diagnose.gaps import motionless
from ampcheck.diagnose.rules.installed import in_installed, own_line
from ampcheck.diagnose.rules.lines_to_change import is_unscaled
from ampcheck.diagnose.savings import forward_bytes
from ampcheck.diagnose.subjects import with_class
from ampcheck.renderers.words import scaler_call
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.op_kinds import CASTS
from ampcheck.values.outcome import magnified
from ampcheck.values.plan import Plan, ScalerPlan
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase
from ampcheck.values.verdict import Health
from ampcheck.values.wording import clean, location, plural, size, some

#: Words that stand before the lines.
LABEL, WHY, BUYS, UNSEEN = "Do this:", "Why:", "What it buys:", "Not seen:"
#: Characters of a list of names that are shown whole.
LISTED = 60
#: What running the operation in FP32 prevents.
_BY_FP32 = frozenset({"AMP101", "AMP103", "AMP501"})


def answer_lines(report: Report) -> Iterator[tuple[str, str]]:
    """Yield what to do now, why, what low precision saves, and what was not seen; each with the words before it."""
    lines = (
        (LABEL, next_step(report)),
        (WHY, settled(report)),
        (BUYS, _buys(report)),
        (UNSEEN, _unseen(report)),
    )
    yield from ((label, words) for label, words in lines if words)


def _buys(report: Report) -> str:
    """Return what low precision saves; '' where nothing was compared, or nothing is to be trained."""
    if report.recipes is not None or report.mode == "infer" or report.dry:
        return ""
    bought = report.bought
    if bought is None:
        low, wide = forward_bytes(report)
        saved = f"the forward writes {size(low)}, in FP32 {size(wide)}"
        return f"{saved}; time and peak memory: {_bench(report)}" if 0 < low < wide else ""
    on = f"on {clean(bought.gpu.upper())}" if bought.gpu else "on a GPU"
    speed = "speed {:.2g}× [{:.2g} to {:.2g}], ".format(*bought.faster) if bought.gpu else ""
    saved = f"{speed}peak {size(bought.peak)} (FP32: {size(bought.reference_peak)})"
    return f"predicted {on}, {plural(bought.batch_size, 'sample')}: {saved}"


def _bench(report: Report) -> str:
    """Return the command that measures time and memory; of a script, the page that says how its batch is kept."""
    target = clean(report.target)
    if report.loop is not None or " " in target:
        return "ampcheck explain bench"
    return f"ampcheck bench {target}"


def _unseen(report: Report) -> str:
    """Return the first thing that was not audited, and how many more there are."""
    if report.recipes is not None or report.dry or not report.low.sites:
        return ""
    missed = sorted(report.not_audited.items(), key=lambda item: -item[1])
    if not missed and report.verdict.coverage.unseen:
        return "how the gradients are in FP32, as said above"
    if not missed and report.verdict.word is Health.PARTLY_AUDITED:
        return "what is said above"
    if not missed:
        return f"nothing ({plural(report.low.operations, 'operation')} seen)"
    more = f", and {plural(len(missed) - 1, 'more kind')}" if len(missed) > 1 else ""
    return f"{_shortened(clean(missed[0][0]))}{more}"


def _shortened(what: str) -> str:
    """Return what was not seen with the first of its names; `-v` has them all."""
    words, _, listed = what.partition(": ")
    first, *others = listed.split(", ")
    return what if len(listed) <= LISTED else f"{words}: {first} and others" if others else what


def next_step(report: Report) -> str:
    """Return what to do now; '' where the report says nothing of it."""
    if report.recipes is not None or report.mode == "infer" or report.dry:
        return ""
    word = report.verdict.word
    if word is Health.UNKNOWN:
        return _audited_otherwise(report)
    if report.stand_in_loss and word is not Health.UNSAFE:
        file = clean(report.target)
        return (
            f"write your own batch and loss, then audit those: ampcheck init {file}" if ".py" in file else ""
        )
    if word is Health.SAFE:
        return _kept(report)
    return _fixed(report)


def _fixed(report: Report) -> str:
    """Return what to change in a step that is not safe, or how to find out more."""
    if report.verdict.word is Health.RISK and report.loop is None and magnified(report.outcomes):
        trained, beside = "audit trained weights: --weights FILE", "train beside FP32: --verify-steps 100"
        return trained if report.random_weights else beside
    once = report.loop is None and len(report.reference.steps) == 1
    if once and report.verdict.word is Health.PARTLY_AUDITED and motionless(report):
        return f"audit the steps after the first update: ampcheck {clean(report.target)} --steps 3"
    if report.plan is not None and (report.plan.fp32_modules or report.plan.fp32_lines or report.plan.scaler):
        return _planned(report, report.plan)
    bad = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    worst = min(bad, key=lambda finding: finding.severity.rank, default=None)
    return _mended(report, worst) if worst is not None else ""


def _kept(report: Report) -> str:
    """Return what a step that came out well needs: nothing, or the loss scaler that it came out well with."""
    if report.loop is not None and report.loop.first_scales:
        return f"train in {report.precision} as the script does: no change is needed"
    plan = report.plan if report.plan is not None and report.plan.precision == report.precision else None
    if plan is not None and (plan.fp32_modules or plan.fp32_lines):
        return _planned(report, plan)
    used = ScalerPlan(2.0**report.log2_scale) if report.log2_scale and report.precision == "fp16" else None
    scaler = plan.scaler if plan is not None else used
    if scaler is None:
        return f"train in {report.precision}: no change is needed"
    return f"train in {report.precision}: {scaler_call(scaler)}; no other change is needed"


def _audited_otherwise(report: Report) -> str:
    """Return the command that comes to a verdict, for a script of whose mixed precision nothing was recorded."""
    if report.loop is None or ".py" not in report.target:
        return ""
    command = clean(report.target)
    if report.precision != "fp32":
        seen = report.loop.recorded or report.low.failure or not report.loop.steps
        return "" if seen else f"audit its model with a batch of yours: ampcheck init {command.split()[0]}"
    if any(finding.code == "AMP410" for finding in report.findings):
        return f"audit it as on the GPU it is written for: ampcheck {command}"
    return f"audit it as if mixed precision were added: ampcheck --what-if fp16 {command}"


def _planned(report: Report, plan: Plan) -> str:
    kept = [with_class(report, name) for name in plan.fp32_modules] + list(plan.fp32_lines)
    parts = [scaler_call(plan.scaler)] if plan.scaler is not None else []
    parts += [f"keep {some(kept)} in FP32"] if kept else []
    other = f"; or {_unchanged(report, plan)}" if kept else ""
    return f"train in {clean(plan.precision)}: {', '.join(parts)}{other}".removesuffix("; or ")


def _unchanged(report: Report, plan: Plan) -> str:
    """Return the other precision, where the step was run in it as it is and came out well."""
    other = "bf16" if plan.precision == "fp16" else "fp16"
    outcome = report.outcomes.get(other)
    if report.precision != plan.precision or outcome is None or outcome.harmed:
        return ""
    if outcome.log2_scale:
        return f"fp16 with {scaler_call(ScalerPlan(2.0**outcome.log2_scale))} alone"
    return f"{other}: no change"


def _mended(report: Report, finding: Finding) -> str:
    at = location(finding.origin.file, finding.origin.line) if finding.origin else ""
    own = own_line(report) if at and in_installed(at) else ""
    where = f" at {at}{f', which {clean(own)} runs' if own else ''}" if at else ""
    how = "the lines below show how" if finding.fix else f"see ampcheck explain {clean(finding.code)}"
    if finding.code in _BY_FP32 and where and finding.origin and finding.origin.op:
        if is_unscaled(report, finding.origin):
            return f"scale the loss: {how}"
        if finding.origin.op in CASTS:
            return f"do not cast to {clean(report.precision)}{where}: {how}"
        runs = finding.origin.phase is Phase.FORWARD  # else no operation that the line shows
        return f"run {clean(finding.origin.op) if runs else 'the line'}{where} in FP32: {how}"
    change = re.match(r"# (\S+:\d+)[,:] ", finding.fix[0]) if finding.fix else None
    if change is not None and not own:  # what is to be changed is made elsewhere
        where = f" at {clean(change[1])}"
    return f"fix {clean(finding.code)} {clean(finding.name)}{where}: {how}"
