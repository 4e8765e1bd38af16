"""What was found, and what was found and does not count."""

from ampcheck.renderers.view import Column, Findings, Kind, Section, Table
from ampcheck.renderers.words import tally
from ampcheck.values.findings import Finding
from ampcheck.values.report import Report
from ampcheck.values.wording import ROOT, location, plural


def findings(report: Report) -> Section | None:
    """Return the findings, the most important first."""
    if not report.findings:
        return None
    return Section("findings", "Findings", tally(report), (Findings(report.findings),))


def suppressed(report: Report) -> Section | None:
    """Return the findings that were kept from counting, and who said so."""
    held = report.suppressed
    if not held:
        return None
    columns = (Column("finding"), Column("where", Kind.CODE), Column("why it does not count"))
    rows = [
        (f"{one.finding.severity}[{one.finding.code}] {one.finding.name}", spot(one.finding), one.words)
        for one in held
    ]
    about = f"{plural(len(held), 'finding')} that {'does' if len(held) == 1 else 'do'} not count"
    return Section("suppressed", "Suppressed", about, (Table("finding", columns, rows),))


def spot(finding: Finding) -> str:
    """Return the line a finding starts in, or its module where no line is known."""
    origin = finding.origin
    return (location(origin.file, origin.line) or origin.module or ROOT) if origin else ""
