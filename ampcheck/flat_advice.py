"""What re-runs said, as plain JSON values and back: outcomes, leaps, updates, the plan and its verdicts."""

from dataclasses import asdict, replace
from typing import Any

from ampcheck.flat import Json, flat, number, read_site, writable
from ampcheck.outcome import Outcome
from ampcheck.plan import Plan, ScalerPlan, Tried, Verdict
from ampcheck.report import Report
from ampcheck.trace import Leap, UpdateLoss


def advice(report: Report) -> Json:
    """Return the fields of a report that re-runs filled."""
    return {
        "plan": None if report.plan is None else _plan(report.plan),
        "verdicts": [asdict(verdict) for verdict in report.verdicts],
        "patch": report.patch,
        "advice": list(report.advice),
        "outcomes": {name: _outcome(outcome) for name, outcome in report.outcomes.items()},
        "leaps": [_leap(leap) for leap in report.leaps],
        "updates": [writable(asdict(update)) for update in report.updates],
    } | ({} if report.placed is None else {"placed": flat(report.placed)})


def with_advice(report: Report, saved: Json) -> Report:
    """Return the report with the fields that `advice` wrote."""
    return replace(
        report,
        plan=None if saved["plan"] is None else _read_plan(saved["plan"]),
        verdicts=tuple(Verdict(**{**item, "tried": Tried(item["tried"])}) for item in saved["verdicts"]),
        patch=saved["patch"],
        advice=tuple(saved["advice"]),
        outcomes={name: _read_outcome(item) for name, item in saved["outcomes"].items()},
        leaps=tuple(_read_leap(item) for item in saved["leaps"]),
        placed=read_site(saved["placed"]) if "placed" in saved else None,
        updates=tuple(UpdateLoss(**item) for item in saved["updates"]),
    )


def _plan(plan: Plan) -> Json:
    return {
        "precision": plan.precision,
        "fp32_modules": list(plan.fp32_modules),
        "fp32_lines": list(plan.fp32_lines),
        "grad_scaler": None if plan.scaler is None else writable(asdict(plan.scaler)),
    }


def _read_plan(item: Json) -> Plan:
    scaler = item["grad_scaler"]
    return Plan(
        item["precision"],
        tuple(item["fp32_modules"]),
        tuple(item["fp32_lines"]),
        None if scaler is None else ScalerPlan.from_fields(scaler),
    )


_NUMBERS = ("loss", "loss_error", "grad_error", "vanished")


def _outcome(outcome: Outcome) -> Json:
    written: Json = writable(asdict(outcome))
    if not outcome.off:
        del written["off"]
    return written


def _read_outcome(item: Json) -> Outcome:
    read: Json = {name: float(item[name]) for name in _NUMBERS}
    read["grads_nonfinite"] = tuple(item["grads_nonfinite"])
    read["off"] = tuple(item.get("off", ()))
    read["vanished_by"] = {name: float(share) for name, share in item["vanished_by"].items()}
    return Outcome(**{**item, **read})


def _leap(leap: Leap) -> Json:
    return {
        "site": flat(leap.site),
        "error_before": number(leap.error_before),
        "error": number(leap.error),
        "dropped": flat(leap.dropped),
    }


def _read_leap(item: dict[str, Any]) -> Leap:
    return Leap(
        read_site(item["site"]), float(item["error_before"]), float(item["error"]), read_site(item["dropped"])
    )
