"""The report as tables of plain values: CSV for a spreadsheet, pandas DataFrames for a notebook."""

import csv
from collections.abc import Iterable, Iterator
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
    place = _named(site, "module op slot phase dtype file line") | {"phase": str(site.phase)}
    return {
        **place,
        "log2_scale": 0,
        "relative_error": None,
        **_numbers(stats, ""),
        **_numbers(before, "fp32_"),
    }


def _named(thing: Any, names: str) -> Row:
    """Return what a thing has under these names; None where there is no thing."""
    return {name: None if thing is None else getattr(thing, name) for name in names.split()}


def _numbers(stats: TensorStats, prefix: str) -> Row:
    some = bool(stats.counts)
    found: Row = {"elements": stats.numel} | _named(stats, "zeros infs nans amax rms")
    found |= {"lowest_log2": stats.lowest if some else None, "highest_log2": stats.highest if some else None}
    return {f"{prefix}{name}": value for name, value in found.items()}


def _layers(report: Report) -> Iterator[Row]:
    names = (
        "module kind dtypes underflow_forward underflow_backward overflowed casts cast_bytes error troubled"
    )
    for row in layer_rows(report):
        yield _named(row, names) | {"dtypes": "+".join(row.dtypes)}


def _findings(report: Report) -> Iterator[Row]:
    shown = [(finding, "") for finding in report.findings]
    shown += [(one.finding, one.words) for one in report.suppressed]
    for finding, suppressed in shown:
        yield {
            "code": finding.code,
            "name": finding.name,
            "severity": str(finding.severity),
            **_named(finding.origin, "module op file line"),
            "sites": len(finding.sites),
            "ranks": len(finding.ranks),
            "suppressed": suppressed,
            "message": finding.message,
            "fix": "\n".join(finding.fix),
        }


def _casts(report: Report) -> Iterator[Row]:
    for cast, number in cast_rows(report):
        place = _named(cast, "module source target phase file line") | {"phase": str(cast.phase)}
        yield place | _named(number, "calls elements bytes round_trips")


def _steps(report: Report) -> Iterator[Row]:
    for name, trace in {"fp32": report.reference, report.precision: report.low}.items():
        for index, step in enumerate(trace.steps):
            head = {"precision": name, "step": index}
            yield head | _named(step, "loss log2_scale grad_amax nonfinite")


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
