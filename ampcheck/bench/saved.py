"""Saved benches: strict JSON, and CSV for tables elsewhere.

The JSON is {"ampcheck_bench": schema, ...} with the fields of `result.Bench`, its cases and rows by their
names. Numbers are kept to seven digits; those JSON has no word for are the texts "nan", "inf" and "-inf", beside a
status that says why. Fields that are missing have their defaults, so that older files load.
"""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

from ampcheck.bench.result import Bench
from ampcheck.errors import ReportError
from ampcheck.values.codec import from_plain, to_plain

SCHEMA = 1
KEY = "ampcheck_bench"


def to_json(bench: Bench) -> str:
    """Return a bench as JSON."""
    plain = {KEY: SCHEMA, **to_plain(bench)}
    short = json.loads(
        json.dumps(plain, allow_nan=False), parse_float=lambda text: float(f"{float(text):.7g}")
    )
    return json.dumps(short, indent=1) + "\n"


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
        return from_plain(Bench, data)
    except (ValueError, RecursionError) as error:
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
