"""The report as tables of plain values: CSV for a spreadsheet, pandas DataFrames for a notebook."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from typing import TYPE_CHECKING, Any

from ampcheck.diagnose.tables import cast_rows, layer_rows, scale_curve
from ampcheck.errors import AmpcheckError
from ampcheck.values.report import Report, by_place
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import clean

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]

#: What a spreadsheet takes for a formula at the start of a cell.
_FORMULA = ("=", "+", "-", "@")


def render(report: Report) -> str:
    """Return a line for each site of the low-precision run, beside what the FP32 run has there."""
    out = StringIO()
    titles = list(_site(Site("", "", "", Phase.FORWARD, ""), TensorStats(), TensorStats()))
    writer = csv.DictWriter(out, titles, lineterminator="\n")
    writer.writeheader()
    for row in sites(report):
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return out.getvalue()


def frames(report: Report) -> "dict[str, pd.DataFrame]":
    """Return the report's sites, layers, findings, casts, steps and loss scales as DataFrames, by these names."""
    try:
        import pandas as pd
    except ImportError as error:
        raise AmpcheckError(
            "expected pandas, which frames are made with, and it is not installed; pip install pandas"
        ) from error
    tables: dict[str, Iterable[Row]] = {
        "sites": sites(report),
        "layers": _layers(report),
        "findings": _findings(report),
        "casts": _casts(report),
        "steps": _steps(report),
        "scales": _scales(report),
    }
    return {name: pd.DataFrame(list(rows)) for name, rows in tables.items()}


def sites(report: Report) -> Iterator[Row]:
    """Yield the sites of the low-precision run, in order of execution, beside what the FP32 run has there."""
    reference = by_place(report.reference)
    for site, stats in report.low.sites.items():
        row = _site(site, stats, reference.get(site.place, TensorStats()))
        pair = report.errors.get(site)
        scale = report.log2_scale if site.scaled else 0
        yield row | {"log2_scale": scale, "relative_error": pair.relative_rms if pair else None}


def _site(site: Site, stats: TensorStats, before: TensorStats) -> Row:
    return {
        "module": site.module,
        "op": site.op,
        "slot": site.slot,
        "phase": str(site.phase),
        "dtype": site.dtype,
        "file": site.file,
        "line": site.line,
        "log2_scale": 0,
        "relative_error": None,
        **_numbers(stats, ""),
        **_numbers(before, "fp32_"),
    }


def _numbers(stats: TensorStats, prefix: str) -> Row:
    some = bool(stats.counts)
    return {
        f"{prefix}elements": stats.numel,
        f"{prefix}zeros": stats.zeros,
        f"{prefix}infs": stats.infs,
        f"{prefix}nans": stats.nans,
        f"{prefix}amax": stats.amax,
        f"{prefix}rms": stats.rms,
        f"{prefix}lowest_log2": stats.lowest if some else None,
        f"{prefix}highest_log2": stats.highest if some else None,
    }


def _layers(report: Report) -> Iterator[Row]:
    for row in layer_rows(report):
        yield {
            "module": row.module,
            "kind": row.kind,
            "dtypes": "+".join(row.dtypes),
            "underflow_forward": row.underflow_forward,
            "underflow_backward": row.underflow_backward,
            "overflowed": row.overflowed,
            "casts": row.casts,
            "cast_bytes": row.cast_bytes,
            "error": row.error,
            "troubled": row.troubled,
        }


def _findings(report: Report) -> Iterator[Row]:
    shown = [(finding, "") for finding in report.findings]
    shown += [(one.finding, one.words) for one in report.suppressed]
    for finding, suppressed in shown:
        origin = finding.origin
        yield {
            "code": finding.code,
            "name": finding.name,
            "severity": str(finding.severity),
            "module": origin.module if origin else None,
            "op": origin.op if origin else None,
            "file": origin.file if origin else None,
            "line": origin.line if origin else None,
            "sites": len(finding.sites),
            "ranks": len(finding.ranks),
            "suppressed": suppressed,
            "message": finding.message,
            "fix": "\n".join(finding.fix),
        }


def _casts(report: Report) -> Iterator[Row]:
    for cast, number in cast_rows(report):
        yield {
            "module": cast.module,
            "source": cast.source,
            "target": cast.target,
            "phase": str(cast.phase),
            "file": cast.file,
            "line": cast.line,
            "calls": number.calls,
            "elements": number.elements,
            "bytes": number.bytes,
            "round_trips": number.round_trips,
        }


def _steps(report: Report) -> Iterator[Row]:
    runs: Mapping[str, Any] = {"fp32": report.reference, report.precision: report.low}
    for name, trace in runs.items():
        for index, step in enumerate(trace.steps):
            yield {
                "precision": name,
                "step": index,
                "loss": step.loss,
                "log2_scale": step.log2_scale,
                "grad_amax": step.grad_amax,
                "nonfinite": step.nonfinite,
            }


def _scales(report: Report) -> Iterator[Row]:
    for point in scale_curve(report):
        yield {
            "log2_scale": point.log2_scale,
            "elements": point.nonzero,
            "underflowed": point.underflowed.low,
            "flushed_at_most": point.underflowed.high,
            "subnormal": point.subnormal.low,
            "subnormal_at_most": point.subnormal.high,
            "overflowed": point.overflowed.low,
            "overflowed_at_most": point.overflowed.high,
        }


def _cell(value: Any) -> Any:
    """Return a value as a cell that no spreadsheet takes for a formula."""
    if not isinstance(value, str):
        return value
    shown = clean(value)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
