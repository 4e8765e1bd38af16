"""Saved benches: strict JSON, and CSV for tables elsewhere.

The JSON is {"ampcheck_bench": schema, ...} with the fields of `result.Bench`, its cases and rows by their
names. Numbers are kept to seven digits; where one is not finite there is null, beside a status that says why.
Fields that are missing have their defaults, so that older files load.
"""

import csv
import dataclasses
import io
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ampcheck.bench.result import Bench
from ampcheck.errors import ReportError

SCHEMA = 1
KEY = "ampcheck_bench"


def to_json(bench: Bench) -> str:
    """Return a bench as JSON."""
    return json.dumps({KEY: SCHEMA, **_plain(bench)}, indent=1, allow_nan=False) + "\n"


def from_json(text: str, where: str = "") -> Bench:
    """Return the bench that JSON stands for."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or data.get(KEY) != SCHEMA:
            found = data.get(KEY) if isinstance(data, dict) else type(data).__name__
            raise ReportError(
                f"expected a bench of schema {SCHEMA}, got {found!r}; write one with ampcheck bench",
                where=where,
            )
        return typing.cast("Bench", _typed(Bench, data))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ReportError(
            f"expected a bench saved by ampcheck, got a damaged one ({type(error).__name__}: {error})",
            where=where,
        ) from error


def read(path: Path) -> Bench:
    """Return the bench in a file."""
    try:
        return from_json(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ReportError(
            f"expected a bench that can be read, could not read {str(path)!r}: {error.strerror}"
        ) from error


def to_csv(rows: list[dict[str, Any]]) -> str:
    """Return rows as CSV; a text that a spreadsheet would take for a formula is quoted."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else ["target"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else ""
    text = str(value)
    return f"'{text}" if text[:1] in {"=", "+", "-", "@", "\t"} and not isinstance(value, int) else value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


def _typed(kind: Any, data: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:
        plain = next(part for part in inner if part is not types.NoneType)
        return None if data is None else _typed(plain, data)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        known = [field.name for field in dataclasses.fields(kind) if field.name in data]
        return kind(**{name: _typed(hints[name], data[name]) for name in known})
    if origin is tuple:
        return tuple(_typed(inner[0], item) for item in data)
    if origin is Mapping:
        return {str(key): _typed(inner[1], item) for key, item in data.items()}
    if kind is float:
        return math.nan if data is None else float(data)
    if not isinstance(data, kind):
        raise TypeError(f"{data!r} is no {kind.__name__}")
    return data
