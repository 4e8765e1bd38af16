"""What a failed expectation prints: plain lines that stay within 100 columns where a test runner indents them."""

import linecache
import textwrap
from collections.abc import Iterable, Sequence
from itertools import islice

from ampcheck.diagnose.rules import RULES
from ampcheck.diagnose.rules.manual import page
from ampcheck.diagnose.tables import layer_rows
from ampcheck.renderers.view import cut
from ampcheck.renderers.words import consequences, figures
from ampcheck.values.findings import Finding
from ampcheck.values.plan import Tried
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import ELLIPSIS, clean, indented_line, location, percent, place, power

#: pytest puts the "E", and the indent of the test's body, before each line.
WIDTH = 86
#: ... and the exception's name before the first.
HEAD = 70
#: Before a command: it is copied, so it is never wrapped.
COMMAND = "$ "
#: Shown before the rest is counted.
FINDINGS, LAYERS, PATCH_LINES = 3, 5, 24


def failure_text(head: str, report: Report, *parts: Iterable[str]) -> str:
    """Return a headline, what was audited, and the lines of some parts, each wrapped at its own indent."""
    lines = (wrapped for part in parts for line in part for wrapped in _wrapped(line))
    return "\n".join(
        [shortened(clean(head), HEAD), *(f"  {line}".rstrip() for line in (setting(report), *lines))]
    )


def setting(report: Report) -> str:
    """Return what was audited, and how, in a few words."""
    scale = f" at loss scale {power(report.log2_scale)}" if report.log2_scale else ""
    return f"{shortened(clean(report.target), 50)} in {report.precision}{scale}"


def shortened(text: str, width: int) -> str:
    """Return a text that takes at most so many characters."""
    return text if len(text) <= width else text[: width - 1] + ELLIPSIS


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """Return findings with their numbers and the user's line."""
    shown, rest = cut(list(findings), FINDINGS, "finding")
    lines = []
    for finding in shown:
        origin = finding.origin
        at = f"  {location(origin.file, origin.line)}" if origin else ""
        lines += ["", f"{finding.severity}[{clean(finding.code)}] {clean(finding.name)}{at}"]
        numbers = " · ".join(figures(finding))
        lines += [f"  {text}" for text in (clean(finding.message), numbers, *consequences(finding)) if text]
        lines += _source(origin) if origin else []
    return [*lines, *([rest] if rest else [])]


def evidence(report: Report, findings: Sequence[Finding], site: Site | None = None) -> list[str]:
    """Return findings and what heals them; where nothing was found, the place where it shows."""
    shown = finding_lines(findings) or (place_lines(site) if site else [])
    return [*shown, *remedy_lines(report, findings)]


def place_lines(site: Site) -> list[str]:
    """Return where something happened, with the user's line."""
    return ["", f"{place(site)}  {location(site.file, site.line)}".rstrip(), *_source(site)]


def layer_lines(report: Report, phase: Phase) -> list[str]:
    """Return the layers that underflow most, each with its share and a line of the user's."""
    backward = phase is Phase.BACKWARD
    rows = [
        (row.underflow_backward if backward else row.underflow_forward, row) for row in layer_rows(report)
    ]
    rows = sorted((row for row in rows if row[0]), key=lambda row: -row[0])
    shown, rest = cut(rows, LAYERS, "layer")
    lines = ["", *(f"{percent(share):>8}  {shortened(row.location, 60)}" for share, row in shown)]
    lines += [rest] if rest else []
    worst = rows[0][1].module if rows else None
    sites = (s for s in report.low.sites if s.module == worst and s.phase is phase and s.file)
    first = next(sites, None)
    return [*lines, *place_lines(first)] if first else lines


def remedy_lines(report: Report, findings: Sequence[Finding]) -> list[str]:
    """Return what heals the step where that was tried, else what the manual advises."""
    confirmed = [verdict for verdict in report.claims if verdict.tried is Tried.CONFIRMED]
    if not confirmed:
        known = (finding.code for finding in findings if finding.code in RULES)
        advised = (page(code).sections.get("What to do", "") for code in islice(known, 1))
        return ["", *(f"what to do: {' '.join(text.split())}" for text in advised if text)]
    lines = [f"  - {clean(verdict.claim)}" for verdict in confirmed]
    first, last = confirmed[0], confirmed[-1]  # later ones count on those before them
    came_to = [f"    {clean(first.before)} → {clean(last.after)}"] if last.after else []
    head = ["", "what heals it, confirmed by running the step again:"]
    return [*head, *lines, *came_to, *_patch(report.patch)]


def _patch(patch: str) -> list[str]:
    """Return a diff against the user's file; what is only to be pasted into a loop would hide the finding."""
    if not patch.startswith("---"):
        return []
    rows, rest = cut(patch.splitlines(), PATCH_LINES, "line")
    lines = [f"  {shortened(indented_line(row), WIDTH)}" for row in rows]
    return ["", *lines, *([f"  {rest}"] if rest else [])]


def _source(site: Site) -> list[str]:
    """Return the user's line itself, if it can be read."""
    linecache.checkcache(site.file)  # the file may have been edited since it was read
    text = clean(linecache.getline(site.file, site.line)) if site.file else ""
    return [shortened(f"  {site.line} | {text}", WIDTH)] if text else []


def _wrapped(line: str) -> list[str]:
    """Return a line as several where it is too long, all with its indent."""
    pad = " " * (len(line) - len(line.lstrip()))
    return (
        [line]
        if len(line) <= WIDTH or line.startswith(COMMAND)
        else textwrap.wrap(line, WIDTH, subsequent_indent=pad)
    )
