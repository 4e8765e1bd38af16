"""From evidence to a plan: what to keep in FP32 and which loss scale, each claim tried by a re-run."""

from collections.abc import Callable
from dataclasses import replace

import torch

from ampcheck.evidence import Suspect, suspects
from ampcheck.outcome import Outcome
from ampcheck.plan import Plan, ScalerPlan, Tried, Verdict
from ampcheck.report import Report
from ampcheck.search import Found, Search
from ampcheck.verify import Lab

#: The scale at which sets are tried in fp16: far from both ends, so that only the set decides.
_SEARCH_LOG2_SCALE = 8
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

Progress = Callable[[str], None]


def advise(report: Report, lab: Lab, budget: float, progress: Progress) -> Report:
    """Return the report with what re-runs said: outcomes, the plan and a verdict for each of its claims."""
    dtype = _DTYPES[report.precision]
    outcomes = {"settled": lab.trial(dtype, report.log2_scale)}
    if report.precision == "fp16":
        outcomes["unscaled"] = lab.trial(dtype, 0)
    report = replace(report, outcomes=outcomes)
    found: Found[Suspect] | None = None
    if outcomes["settled"].harmed:
        found = _search(report, lab, dtype, budget, progress)
    return _planned(report, lab, dtype, found)


def _search(report: Report, lab: Lab, dtype: torch.dtype, budget: float, progress: Progress) -> Found[Suspect]:
    scale = _SEARCH_LOG2_SCALE if report.precision == "fp16" else 0

    def heals(items: tuple[Suspect, ...]) -> bool:
        progress(f"trying {', '.join(item.name for item in items[:3])}{' ...' if len(items) > 3 else ''} in FP32")  # noqa: PLR2004
        return not _try(lab, dtype, scale, items).harmed

    return _gathered(Search(heals, budget).run(suspects(report)), heals)


def _gathered(found: Found[Suspect], heals: Callable[[tuple[Suspect, ...]], bool]) -> Found[Suspect]:
    """Return the set as one module that holds all of it, where that heals too."""
    parent = common_parent([item.module for item in found.items])
    if found.heals and len(found.items) > 1 and parent and all(item.module for item in found.items):
        whole = (Suspect(module=parent),)
        if heals(whole):
            return replace(found, items=whole, trials=found.trials + 1)
    return found


def common_parent(names: list[str]) -> str:
    """Return the innermost module that holds all of these, '' where only the root does."""
    split = [name.split(".") for name in names]
    shared = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def _try(lab: Lab, dtype: torch.dtype, scale: int, items: tuple[Suspect, ...]) -> Outcome:
    modules = [item.module for item in items if item.module]
    lines = [(file, int(line)) for file, _, line in (item.line.rpartition(":") for item in items if item.line)]
    return lab.trial(dtype, scale, modules, lines)


def _planned(report: Report, lab: Lab, dtype: torch.dtype, found: Found[Suspect] | None) -> Report:
    items = found.items if found is not None and found.heals else ()
    scaler = _scaler(report, lab, dtype, items)
    plan = Plan(
        report.precision if found is None or found.heals else "fp32",
        tuple(item.module for item in items if item.module),
        tuple(item.line for item in items if item.line),
        scaler,
    )
    return replace(report, plan=plan, verdicts=_verdicts(report, lab, dtype, items, found, scaler))


def _scaler(report: Report, lab: Lab, dtype: torch.dtype, items: tuple[Suspect, ...]) -> ScalerPlan | None:
    """Return the largest scale up to the default that leaves every gradient finite, two octaves below it."""
    if report.precision != "fp16":
        return None
    scale = report.log2_scale
    if items:
        scale = next((k for k in range(16, -1, -1) if _try(lab, dtype, k, items).finite), 0)
    return ScalerPlan(init_scale=2.0**scale)


def _verdicts(
    report: Report,
    lab: Lab,
    dtype: torch.dtype,
    items: tuple[Suspect, ...],
    found: Found[Suspect] | None,
    scaler: ScalerPlan | None,
) -> tuple[Verdict, ...]:
    before = report.outcomes["settled"]
    if found is None:
        return ()
    if not found.heals:
        claim = f"no set of {len(found.items)} places in FP32 heals {report.precision}"
        return (Verdict(claim, Tried.CONFIRMED if found.trials else Tried.NOT_TRIED, before.words, ""),)
    log2_scale = 0 if scaler is None else round(torch.tensor(scaler.init_scale).log2().item())
    after = _try(lab, dtype, log2_scale, items)
    names = ", ".join(item.name for item in items)
    return (Verdict(f"keep {names} in FP32", Tried.REFUTED if after.harmed else Tried.CONFIRMED, before.words, after.words),)
