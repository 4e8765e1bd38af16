"""Several reports of the same audit as one: its ranks, its batches, whatever parts it was run in.

Merging is associative and takes its parts in any order; every element, cast and step of every part is in the
sum. (Sums of floats carry the rounding of doubles, and what ran on some parts only is listed after what it
followed there.) Where parts say different things of the same place, the worse is kept.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce
from itertools import zip_longest
from math import isnan
from typing import Any, TypeAlias, TypeVar

from ampcheck.diagnose.rules import RULES
from ampcheck.diagnose.rules.loop_ranks import DISAGREEMENT, ranks_disagree
from ampcheck.diagnose.verdict import judged
from ampcheck.errors import ReportError
from ampcheck.values.findings import Finding, Suppressed
from ampcheck.values.loop import Loop, ScaleEvent
from ampcheck.values.outcome import Outcome
from ampcheck.values.plan import Claim, Plan, ScalerPlan, Tried
from ampcheck.values.report import Rank, Report, at_scale
from ampcheck.values.trace import ModuleInfo, Site, StepSummary, Trace, UpdateLoss, add_maps
from ampcheck.values.verdict import Verdict
from ampcheck.values.wording import power

Item = TypeVar("Item")
Key = TypeVar("Key")
Value = TypeVar("Value")
Reason: TypeAlias = tuple[Any, ...]
#: Between the values of an environment that differs from rank to rank.
_BETWEEN = " / "
_TOGETHER = Claim("the plans of all ranks, put together", Tried.NOT_TRIED)
_BADNESS = (Tried.REFUTED, Tried.NOT_TRIED, Tried.CONFIRMED)


def merge(parts: Mapping[str, Report]) -> Report:
    """Return the reports, each with its name, as one; a report that was merged before keeps its ranks' names."""
    if not parts:
        raise ReportError("expected at least one report to merge, got none; pass saved reports")
    _check(parts)
    ranked = [report if report.ranks else _ranked(report, name) for name, report in parts.items()]
    whole = reduce(_sum, sorted(ranked, key=lambda report: _natural(report.ranks[0].name)))
    apart = ranks_disagree(whole)
    if not apart:
        return judged(whole)
    shown = [finding for finding in whole.findings if finding.code != DISAGREEMENT]
    return judged(replace(whole, findings=tuple(sorted([*shown, *apart], key=_order))))


def together(parts: Mapping[str, Report]) -> Report:
    """Return reports as one; where they cannot be added the first of them, with a note that says so."""
    try:
        return merge(parts)
    except ReportError as error:
        name, first = next(iter(parts.items()))
        note = f"only {name} is shown, the others cannot be added: {error.message}"
        return replace(first, notes=(*first.notes, note))


def _check(parts: Mapping[str, Report]) -> None:
    """Refuse what cannot be added."""
    first, *others = parts.items()
    for name, report in others:
        for what, show in _SAME.items():
            follows = what == "loss scale" and report.loop and first[1].loop
            if show(report) != show(first[1]) and not follows:
                raise ReportError(
                    f"expected reports of one target, precision and loss scale, got {what} {show(first[1])} in "
                    f"{first[0]} and {show(report)} in {name}; run every part with the same TARGET, --precision "
                    "and --scale"
                )
    seen: set[str] = set()
    for name, report in parts.items():
        names = {rank.name for rank in report.ranks} or {name}
        if names & seen:
            raise ReportError(
                f"expected every rank once, got {min(names & seen)!r} again in {name}; merge each report once"
            )
        seen |= names


_SAME: dict[str, Callable[[Report], str]] = {
    "target": lambda report: repr(report.target),
    "precision": lambda report: report.precision,
    "loss scale": lambda report: power(report.log2_scale),
}


def _ranked(report: Report, name: str) -> Report:
    """Return a report as that of one rank."""
    return replace(
        report,
        ranks=(Rank(name, len(report.low.steps), len(report.reference.steps), *_scales(report)),),
        findings=tuple(replace(finding, ranks=(name,)) for finding in report.findings),
        suppressed=tuple(
            replace(held, finding=replace(held.finding, ranks=(name,))) for held in report.suppressed
        ),
    )


def _scales(report: Report) -> tuple[Mapping[str, float], tuple[ScaleEvent, ...]]:
    return (report.loop.first_scales, report.loop.scales) if report.loop else ({}, ())


def _sum(a: Report, b: Report) -> Report:
    lowest = min(a.log2_scale, b.log2_scale)
    a, b = at_scale(a, lowest), at_scale(b, lowest)
    differ = a.plan is not None and b.plan is not None and a.plan != b.plan
    return replace(
        a,
        ranks=tuple(sorted((*a.ranks, *b.ranks), key=lambda rank: _natural(rank.name))),
        reference=replace(_trace(a.reference, b.reference), steps=_steps(a, b, reference=True)),
        low=replace(_trace(a.low, b.low), steps=_steps(a, b, reference=False)),
        errors=add_maps(a.errors, b.errors),
        findings=_findings(a.findings, b.findings),
        verdict=Verdict(coverage=a.verdict.coverage + b.verdict.coverage),
        suppressed=_suppressed(a.suppressed, b.suppressed),
        stand_in_loss=a.stand_in_loss or b.stand_in_loss,
        scaling_open=a.scaling_open and b.scaling_open,
        refused_scales=tuple(sorted({*a.refused_scales, *b.refused_scales}, reverse=True)),
        notes=_union(a.notes, b.notes),
        environment=_environment(a.environment, b.environment),
        outcomes=_outcomes(a.outcomes, b.outcomes),
        error_jumps=_union(a.error_jumps, b.error_jumps, repr),
        placed=_first(a.placed, b.placed),
        updates=_updates(a.updates, b.updates),
        doubts=_union(a.doubts, b.doubts, repr),
        makers=_union(a.makers, b.makers, repr),
        plan=_plan(a.plan, b.plan),
        claims=_claims((*a.claims, *b.claims, *((_TOGETHER,) if differ else ()))),
        patch=a.patch if a.patch == b.patch else "",
        advice=_common(a.advice, b.advice),
        bought=_first(a.bought, b.bought),
        loop=_longer(a.loop, b.loop),
    )


def _trace(a: Trace, b: Trace) -> Trace:
    both = a + b
    return replace(
        both,
        sites=_in_order(both.sites, a.sites, b.sites),
        casts=_in_order(both.casts, a.casts, b.casts),
        modules=_modules(a.modules, b.modules),
        failure=_first(a.failure, b.failure),
        constants=_union(a.constants, b.constants),
    )


def _in_order(both: Mapping[Key, Value], a: Iterable[Key], b: Iterable[Key]) -> dict[Key, Value]:
    """Return what both hold in a's order, what only b has after what it came after there."""
    after: dict[Key | None, list[Key]] = {}
    known, last = set(a), None
    for key in b:
        if key in known:
            last = key
        else:
            after.setdefault(last, []).append(key)
    order = [*after.get(None, ()), *(key for known in a for key in (known, *after.get(known, ())))]
    return {key: both[key] for key in order}


def _steps(a: Report, b: Report, *, reference: bool) -> tuple[StepSummary, ...]:
    """Return the steps of one precision, rank after rank."""
    by_rank: dict[str, tuple[StepSummary, ...]] = {}
    for report in (a, b):
        steps = report.reference.steps if reference else report.low.steps
        start = 0
        for rank in report.ranks:
            stop = start + (rank.reference_steps if reference else rank.steps)
            by_rank[rank.name], start = steps[start:stop], stop
    return tuple(step for name in sorted(by_rank, key=_natural) for step in by_rank[name])


def _modules(a: tuple[ModuleInfo, ...], b: tuple[ModuleInfo, ...]) -> tuple[ModuleInfo, ...]:
    """Return the modules of both; a module that ran on both has run as often as on the busier one."""
    first, second = ({module.path: module for module in modules} for modules in (a, b))
    paths = _union(tuple(first), tuple(second), _natural)
    return tuple(
        _module(first[path], second[path]) if path in first and path in second else (first | second)[path]
        for path in paths
    )


def _module(a: ModuleInfo, b: ModuleInfo) -> ModuleInfo:
    return ModuleInfo(
        a.path,
        min(a.kind, b.kind),
        max(a.calls, b.calls),
        _union(a.aliases, b.aliases),
        max(a.parameters, b.parameters),
        _union(a.dtypes, b.dtypes),
    )


def _first(a: Item | None, b: Item | None) -> Item | None:
    """Return what is there; of two the one whose text comes first, whatever their order."""
    return min((item for item in (a, b) if item is not None), key=repr, default=None)


def _longer(a: Loop | None, b: Loop | None) -> Loop | None:
    """Return the loop with more steps: where a rank dies, the others were ended in the middle of a step."""
    return min((loop for loop in (a, b) if loop), key=lambda loop: (-loop.steps, repr(loop)), default=None)


def _findings(a: Iterable[Finding], b: Iterable[Finding]) -> tuple[Finding, ...]:
    sides = ([((), finding) for finding in side] for side in (a, b))
    return tuple(finding for _, finding in _together(*sides))


def _suppressed(a: Iterable[Suppressed], b: Iterable[Suppressed]) -> tuple[Suppressed, ...]:
    sides = ([((held.how, held.entry, held.reason), held.finding) for held in side] for side in (a, b))
    return tuple(Suppressed(finding, *shown) for shown, finding in _together(*sides))


def _together(*sides: list[tuple[Reason, Finding]]) -> list[tuple[Reason, Finding]]:
    """Return the findings of both sides; of two at one place the worse, with the ranks of both."""
    first, second = (_by_place(side) for side in sides)
    merged = [
        (shown, _worse(x, y))
        for shown, code, place in dict.fromkeys([*first, *second])
        for x, y in zip_longest(first.get((shown, code, place), ()), second.get((shown, code, place), ()))
    ]
    return sorted(merged, key=lambda item: (_order(item[1]), repr(item[0])))


def _by_place(side: list[tuple[Reason, Finding]]) -> dict[tuple[Reason, str, Site | None], list[Finding]]:
    """Return the findings by what was said of them, code and place, each list in order."""
    groups: dict[tuple[Reason, str, Site | None], list[Finding]] = {}
    for shown, finding in sorted(side, key=lambda item: _order(item[1])):
        place = finding.origin.place if finding.origin else None
        groups.setdefault((shown, finding.code, place), []).append(finding)
    return groups


def _worse(x: Finding | None, y: Finding | None) -> Finding:
    found = [finding for finding in (x, y) if finding is not None]
    ranks = {name for finding in found for name in finding.ranks}
    return replace(min(found, key=_order), ranks=tuple(sorted(ranks, key=_natural)))


def _order(finding: Finding) -> tuple[object, ...]:
    """Return what findings are sorted by: severity, then the order of the rules, then the place."""
    rule = list(RULES).index(finding.code) if finding.code in RULES else len(RULES)
    module = finding.origin.module if finding.origin else ""
    return finding.severity.rank, rule, _natural(module), repr(replace(finding, ranks=()))


def _environment(a: Mapping[str, str], b: Mapping[str, str]) -> dict[str, str]:
    """Return every fact; where the ranks differ, all that they say."""
    shown = {
        name: {*a.get(name, "").split(_BETWEEN), *b.get(name, "").split(_BETWEEN)} for name in {**a, **b}
    }
    return {name: _BETWEEN.join(sorted(values - {""})) for name, values in shown.items()}


def _outcomes(a: Mapping[str, Outcome], b: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Return of each kind of re-run the one that came out worst."""
    return {
        name: max((side[name] for side in (a, b) if name in side), key=_harm)
        for name in dict.fromkeys([*a, *b])
    }


def _harm(outcome: Outcome) -> tuple[object, ...]:
    figures = (outcome.grad_error, outcome.loss_error, outcome.underflow)
    known = tuple((isnan(figure), 0.0 if isnan(figure) else figure) for figure in figures)
    return (
        outcome.harmed,
        not outcome.finite,
        bool(outcome.raised),
        outcome.loss_nonfinite,
        known,
        repr(outcome),
    )


def _updates(a: Iterable[UpdateLoss], b: Iterable[UpdateLoss]) -> tuple[UpdateLoss, ...]:
    """Return of each tensor the update that lost most; under data parallelism ranks hold the same ones."""
    worst: dict[str, UpdateLoss] = {}
    for update in (*a, *b):
        known = worst.get(update.name, update)
        worst[update.name] = max(known, update, key=lambda one: (one.wrong, one.stuck, one.moved))
    return tuple(worst[name] for name in sorted(worst, key=_natural))


def _plan(a: Plan | None, b: Plan | None) -> Plan | None:
    """Return a plan that keeps in FP32 what any rank has to keep there, with the smaller loss scale."""
    if a is None or b is None or a == b:
        return a or b
    return Plan(
        max(a.precision, b.precision, key=lambda word: {"bf16": 1, "fp32": 2}.get(word, 0)),
        _union(a.fp32_modules, b.fp32_modules, _natural),
        _union(a.fp32_lines, b.fp32_lines, _natural),
        _scaler(a.scaler, b.scaler),
    )


def _scaler(a: ScalerPlan | None, b: ScalerPlan | None) -> ScalerPlan | None:
    if a is None or b is None:
        return a or b
    return ScalerPlan(
        min(a.init_scale, b.init_scale),
        min(a.growth_factor, b.growth_factor),
        min(a.backoff_factor, b.backoff_factor),
        max(a.growth_interval, b.growth_interval),
    )


def _claims(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Return each claim once, with the worst that was said of it."""
    worst: dict[str, Claim] = {}
    for verdict in claims:
        known = worst.get(verdict.claim, verdict)
        worst[verdict.claim] = min(known, verdict, key=lambda one: (_BADNESS.index(one.tried), repr(one)))
    return tuple(worst[claim] for claim in sorted(worst))


def _union(
    a: tuple[Item, ...], b: tuple[Item, ...], key: Callable[[Item], Any] = lambda item: item
) -> tuple[Item, ...]:
    """Return the items of both: in their order where it is the same, else sorted, so that grouping is all one."""
    return a if a == b else tuple(sorted({*a, *b}, key=key))


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """Return what both say: advice holds for all ranks or is none."""
    return a if a == b else tuple(sorted({*a} & {*b}))


def _natural(name: str) -> list[tuple[int, str]]:
    """Return what a name is sorted by: rank 10 comes after rank 9."""
    parts = (part.lstrip("0") or "0" if part.isdecimal() else part for part in re.split(r"(\d+)", name))
    return [(len(part), part) if part.isdecimal() else (-1, part) for part in parts]
