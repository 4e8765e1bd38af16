"""The flat JSON objects of a saved report: one a value, fields that hold their default left out."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from operator import index
from typing import Any

from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Cast, CastCount, Failure, ModuleInfo, PairError, Phase, Site, StepSummary

Json = dict[str, Any]

_PHASES = {str(phase): phase for phase in Phase}

_FIELDS: dict[type, tuple[tuple[str, Any], ...]] = {
    kind: tuple((field.name, field.default) for field in fields(kind))
    for kind in (TensorStats, CastCount, PairError, ModuleInfo, StepSummary, Failure)
} | {
    kind: tuple((name, kind._field_defaults.get(name, MISSING)) for name in kind._fields)
    for kind in (Site, Cast)
}


def flat(value: Any) -> Json:
    """Return the fields of a value that do not hold their default."""
    named = ((name, getattr(value, name), default) for name, default in _FIELDS[type(value)])
    return {
        name: number(item) if isinstance(item, float) else item
        for name, item, default in named
        if default is MISSING or item != default
    }


def number(value: float) -> float | str:
    """Return a number as JSON can hold it."""
    return value if math.isfinite(value) else str(float(value))


def writable(fields: Mapping[str, Any]) -> Json:
    """Return fields, and those of the mappings in them, with every number as JSON can hold it."""
    return {
        name: writable(item)
        if isinstance(item, Mapping)
        else number(item)
        if isinstance(item, float)
        else item
        for name, item in fields.items()
    }


def pairs(mapping: Mapping[Any, Any]) -> list[Json]:
    """Return an object for each item of a mapping: the fields of its key and of its value."""
    return [flat(key) | flat(value) for key, value in mapping.items()]


def read_site(item: Json) -> Site:
    """Return the site of an object."""
    get = item.get
    place = (item["module"], item["op"], item["slot"], _PHASES[item["phase"]], item["dtype"])
    return Site(*place, get("file", ""), get("line", 0))


def read_stats(item: Json) -> TensorStats:
    """Return the statistics of an object."""
    get = item.get
    counts = tuple(map(index, get("counts", ())))
    sums = (float(get("amax", 0.0)), float(get("sum_squares", 0.0)))
    return TensorStats(
        index(get("lowest", 0)), counts, get("zeros", 0), get("infs", 0), get("nans", 0), *sums
    )


def read_cast(item: Json) -> Cast:
    """Return the cast of an object."""
    where = (item.get("file", ""), item.get("line", 0))
    return Cast(item["module"], item["source"], item["target"], _PHASES[item["phase"]], *where)


def read_count(item: Json) -> CastCount:
    """Return the cast count of an object."""
    return CastCount(*(index(item.get(name, 0)) for name, _ in _FIELDS[CastCount]))


def read_error(item: Json) -> PairError:
    """Return the sums over sampled pairs of an object."""
    values: list[Any] = [item.get(name, default) for name, default in _FIELDS[PairError]]
    if str in map(type, values):  # a sum that is no finite number
        values = [float(value) if isinstance(value, str) else value for value in values]
    return PairError(*values)


def read_step(item: Json) -> StepSummary:
    """Return the step of an object."""
    return StepSummary(float(item["loss"]), item["log2_scale"], float(item["grad_amax"]), item["nonfinite"])


def read_module(item: Json) -> ModuleInfo:
    """Return the module of an object."""
    lists = {name: tuple(item.get(name, ())) for name in ("aliases", "dtypes")}
    return ModuleInfo(
        item["path"], item["kind"], item.get("calls", 0), parameters=item.get("parameters", 0), **lists
    )


def read_failure(item: Json) -> Failure:
    """Return the failure of an object."""
    kind, message, module, op, file = (
        item.get(name, "") for name in ("kind", "message", "module", "op", "file")
    )
    return Failure(kind, message, module, op, file, item.get("line", 0))
