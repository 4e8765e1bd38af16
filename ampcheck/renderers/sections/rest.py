"""What was not audited, what was assumed, and where the step ran."""

from ampcheck.renderers.drawing import TIMES
from ampcheck.renderers.view import Fact, Facts, Item, Items, Section
from ampcheck.values.report import Report
from ampcheck.values.wording import count, plural


def not_audited(report: Report) -> Section | None:
    """Return what was left out of the figures."""
    low = report.low
    seen = f"{plural(low.operations, 'operation')} seen, {plural(low.measured, 'tensor')} measured"
    missed = sorted(report.not_audited.items(), key=lambda item: -item[1])
    if not missed:
        return Section("missed", "Not audited", f"nothing · {seen}") if low.sites else None
    items = Items([Item(what, f"{count(times)}{TIMES}") for what, times in missed])
    return Section("missed", "Not audited", f"left out of the figures above · {seen}", (items,))


def notes(report: Report) -> Section | None:
    """Return what was assumed."""
    if not report.notes:
        return None
    return Section("notes", "Notes", blocks=(Items([Item(note) for note in report.notes]),))


def environment(report: Report) -> Section | None:
    """Return where the step ran."""
    known = [Fact(name, (text,)) for name, text in report.environment.items()]
    return Section("environment", "Environment", blocks=(Facts(known),)) if known else None
