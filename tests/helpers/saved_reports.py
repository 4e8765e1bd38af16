"""The saved reports: audits of real, small models, made by `python tests/saved/make.py`."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from ampcheck.saved.report_json import read
from ampcheck.values.report import Report
from ampcheck.values.trace import Trace

FOLDER = Path(__file__).parents[1] / "saved"
SAVED = sorted(path.stem for path in FOLDER.glob("*.json"))


@cache
def saved(name: str) -> Report:
    """Return a saved report."""
    return read(FOLDER / f"{name}.json")


def repeated(report: Report, number: int) -> Report:
    """Return a report of a model that holds another so many times."""

    def renamed(held: dict) -> dict:
        return {
            key._replace(module=f"part.{index}.{key.module}".rstrip(".")): value
            for index in range(number)
            for key, value in held.items()
        }

    def enlarged(trace: Trace) -> Trace:
        parts = (
            replace(module, path=f"part.{i}.{module.path}") for i in range(number) for module in trace.modules
        )
        return replace(trace, sites=renamed(trace.sites), casts=renamed(trace.casts), modules=tuple(parts))

    low, reference = enlarged(report.low), enlarged(report.reference)
    return replace(report, reference=reference, low=low, errors=renamed(report.errors))
