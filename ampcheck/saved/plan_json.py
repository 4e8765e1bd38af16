"""What re-runs said, as plain JSON values and back: outcomes, error_jumps, updates, the plan and its claims."""

from dataclasses import asdict, fields, replace
from typing import Any

from ampcheck.saved.fields import Json, flat, number, read_site, writable
from ampcheck.values.agreement import Agreement
from ampcheck.values.outcome import Outcome
from ampcheck.values.plan import Claim, Plan, ScalerPlan, Tried
from ampcheck.values.report import Report
from ampcheck.values.trace import ErrorJump, Stored, UpdateLoss


def advice(report: Report) -> Json:
    """Return the fields of a report that re-runs filled."""
    return {
        "plan": None if report.plan is None else _plan(report.plan),
        "claims": [asdict(verdict) for verdict in report.claims],
        "patch": report.patch,
        "advice": list(report.advice),
        "outcomes": {name: _outcome(outcome) for name, outcome in report.outcomes.items()},
        "error_jumps": [_error_jump(jump) for jump in report.error_jumps],
        "updates": [writable(asdict(update)) for update in report.updates],
    } | _optional(report)


def _optional(report: Report) -> Json:
    """Return what only some reports have."""
    found: Json = {} if report.placed is None else {"placed": flat(report.placed)}
    if report.mode != "train" or report.cast != "autocast":
        found |= {"mode": report.mode, "cast": report.cast}
        found["stored"] = [writable(asdict(one)) for one in report.stored]
    return found


def with_advice(report: Report, saved: Json) -> Report:
    """Return the report with the fields that `advice` wrote."""
    return replace(
        report,
        plan=None if saved["plan"] is None else _read_plan(saved["plan"]),
        claims=tuple(Claim(**{**item, "tried": Tried(item["tried"])}) for item in saved["claims"]),
        patch=saved["patch"],
        advice=tuple(saved["advice"]),
        outcomes={name: _read_outcome(item) for name, item in saved["outcomes"].items()},
        error_jumps=tuple(_read_error_jump(item) for item in saved["error_jumps"]),
        placed=read_site(saved["placed"]) if "placed" in saved else None,
        updates=tuple(UpdateLoss(**item) for item in saved["updates"]),
        mode=saved.get("mode", "train"),
        cast=saved.get("cast", "autocast"),
        stored=tuple(Stored(**_floats(item, Stored)) for item in saved.get("stored", ())),
    )


def _plan(plan: Plan) -> Json:
    return {
        "precision": plan.precision,
        "fp32_modules": list(plan.fp32_modules),
        "fp32_lines": list(plan.fp32_lines),
        "grad_scaler": None if plan.scaler is None else writable(asdict(plan.scaler)),
        **(_recipe(plan) if plan.recipe else {}),
        **plan.of_inference(),
    }


def _recipe(plan: Plan) -> Json:
    return {
        "recipe": plan.recipe,
        "bf16_modules": list(plan.bf16_modules),
        "bf16_gemms": list(plan.bf16_gemms),
    }


def _read_plan(item: Json) -> Plan:
    scaler = item["grad_scaler"]
    return Plan(
        item["precision"],
        tuple(item["fp32_modules"]),
        tuple(item["fp32_lines"]),
        None if scaler is None else ScalerPlan.from_fields(scaler),
        item.get("recipe", ""),
        tuple(item.get("bf16_modules", ())),
        tuple(item.get("bf16_gemms", ())),
        cast=item.get("cast", "autocast"),
        outputs=item.get("outputs", ""),
        keep_inputs=tuple(item.get("keep_inputs", ())),
    )


#: Fields that are written only where there is something in them.
_WHERE_ANY = ("off", "parts", "state", "next_error")
_NUMBERS = ("loss", "loss_error", "grad_error", "underflow")


def _outcome(outcome: Outcome) -> Json:
    written: Json = writable(asdict(outcome))
    for name in _WHERE_ANY:
        if not written[name]:
            del written[name]
    del written["outputs"]
    if outcome.outputs:
        written["outputs"] = [writable(asdict(one)) for one in outcome.outputs]
    return written


def _read_outcome(item: Json) -> Outcome:
    read: Json = {name: float(item[name]) for name in _NUMBERS}
    read["grads_nonfinite"] = tuple(item["grads_nonfinite"])
    read["off"] = tuple(item.get("off", ()))
    read["next_error"] = float(item.get("next_error", 0.0))
    for name in ("parts", "state"):
        read[name] = {key: float(error) for key, error in item.get(name, {}).items()}
    read["underflow_by"] = {name: float(share) for name, share in item["underflow_by"].items()}
    read["outputs"] = tuple(Agreement(**_floats(one, Agreement)) for one in item.get("outputs", ()))
    return Outcome(**{**item, **read})


def _floats(item: Json, kind: type) -> Json:
    """Return fields with those read as numbers that JSON may hold as text: inf and NaN."""
    wanted = {field.name for field in fields(kind) if field.type in (float, float | None)}
    return {n: float(v) if n in wanted and v is not None else v for n, v in item.items()}


def _error_jump(jump: ErrorJump) -> Json:
    return {
        "site": flat(jump.site),
        "error_before": number(jump.error_before),
        "error": number(jump.error),
        "dropped": flat(jump.dropped),
    }


def _read_error_jump(item: dict[str, Any]) -> ErrorJump:
    return ErrorJump(
        read_site(item["site"]), float(item["error_before"]), float(item["error"]), read_site(item["dropped"])
    )
