"""What recipes did to a step, as plain JSON values and back."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from ampcheck.saved.fields import Json, flat, number
from ampcheck.values.recipe_audit import (
    InUse,
    OperandStats,
    RecipeAudit,
    RecipeOutcome,
    RecipePlan,
    RecipeResult,
)
from ampcheck.values.report import Report
from ampcheck.values.stats import TensorStats


def recipe_fields(report: Report) -> Json:
    """Return the fields of a report about recipes; none where it has nothing of the kind."""
    audited = {} if report.recipes is None else {"recipes": _object(report.recipes)}
    return audited | ({"in_use": _object(report.in_use)} if report.in_use else {})


def read_in_use(saved: Iterable[Json]) -> tuple[InUse, ...]:
    """Return the layers that objects stand for."""
    return tuple(InUse(**item) for item in saved)


def read_recipes(saved: Json | None) -> RecipeAudit | None:
    """Return the audit that an object stands for."""
    if saved is None:
        return None
    return RecipeAudit(
        **{
            **saved,
            "results": tuple(map(_read_result, saved["results"])),
            "loss": float(saved["loss"]),
            "undetermined": _numbers(saved["undetermined"]),
            "judged": tuple(saved["judged"]),
            "layers": {name: tuple(shape) for name, shape in saved["layers"].items()},
            "noise": _numbers(saved["noise"]),
        }
    )


def _object(value: Any) -> Any:
    """Return a value with nothing in it that JSON does not have."""
    if isinstance(value, TensorStats):
        return flat(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {name: _object(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_object(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _object(getattr(value, field.name)) for field in fields(value)}
    return value


def _numbers(saved: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in saved.items()}


def _read_result(saved: Json) -> RecipeResult:
    outcomes = {
        name: _read_outcome(saved[name])
        for name in ("planned", "fresh", "trained")
        if saved[name] is not None
    }
    plan = saved["plan"]
    return RecipeResult(
        **{
            **saved,
            **outcomes,
            "outcome": _read_outcome(saved["outcome"]),
            "alone": _numbers(saved["alone"]),
            "plan": None if plan is None else _read_plan(plan),
            "operands": tuple(map(_read_operand, saved["operands"])),
        }
    )


def _read_outcome(saved: Json) -> RecipeOutcome:
    return RecipeOutcome(**{**saved, "errors": _numbers(saved["errors"]), "loss": float(saved["loss"])})


def _read_plan(saved: Json) -> RecipePlan:
    lists = {name: tuple(saved[name]) for name in ("bf16_modules", "gemms")}
    return RecipePlan(**{**saved, **lists, "cost": float(saved["cost"])})


def _read_operand(saved: Json) -> OperandStats:
    stats = dict(saved["scaled"])
    stats["counts"] = tuple(stats.get("counts", ()))
    for name in ("amax", "sum_squares"):
        stats[name] = float(stats.get(name, 0.0))
    low, high = saved["scales"]
    return OperandStats(
        **{
            **saved,
            "scaled": TensorStats(**stats),
            "error": float(saved["error"]),
            "scales": (float(low), float(high)),
            "amax": tuple(float(value) for value in saved["amax"]),
        }
    )
