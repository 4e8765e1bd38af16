"""The report as a comment on a pull request: the verdict, what is wrong, what to do; the rest is counted."""

from collections.abc import Iterable, Iterator

from ampcheck.diagnose.tables import layer_rows
from ampcheck.renderers.advice import how_tried
from ampcheck.renderers.drawing import NONE, fitted
from ampcheck.renderers.layers import layer_cells
from ampcheck.renderers.markdown import named, patch_lines, plan
from ampcheck.renderers.markup import code, fence, folded, inline, table
from ampcheck.renderers.next_step import LABEL, next_step
from ampcheck.renderers.pictures import drawn_curve
from ampcheck.renderers.words import corrected, facts, measured, tally
from ampcheck.values.findings import Finding
from ampcheck.values.report import Report
from ampcheck.values.verdict import Health
from ampcheck.values.wording import ELLIPSIS, location, plural

#: Characters that GitHub takes in a comment.
LIMIT = 65_536
FINDINGS, LAYERS = 10, 10
_MESSAGE, _FACT = 400, 40
#: Lines of a patch that are worth a place in a comment.
_PATCH = 200
_ALERTS = {
    Health.SAFE: "TIP",
    Health.PARTLY_AUDITED: "WARNING",
    Health.RISK: "WARNING",
    Health.UNSAFE: "CAUTION",
    Health.UNKNOWN: "WARNING",
}


def render(report: Report) -> str:
    """Return what a reviewer has to know, at most as long as a comment may be."""
    return fitting([*_head(report), *_findings(report), *_plan(report), *_layers(report), *_curve(report)])


def fitting(parts: Iterable[str], limit: int = LIMIT) -> str:
    """Return the parts below each other, as many from the first on as fit, and how many did not."""
    shown, left, room = [], 0, limit - len("\n\n… and 9,999 more parts, too long to be shown here\n")
    for part in parts:
        left += left > 0 or len(part) + 2 > room
        room -= len(part) + 2
        shown += [] if left else [part]
    if left:
        shown.append(f"{ELLIPSIS} and {plural(left, 'more part')}, too long to be shown here")
    return "\n\n".join(shown) + "\n"


def _head(report: Report) -> Iterator[str]:
    health, sentence = report.verdict.word, report.verdict.sentence
    yield f"### ampcheck: {code(fitted(report.target, _FACT * 2))}"
    words = inline(fitted(sentence, _MESSAGE))
    yield f"> [!{_ALERTS[health]}]\n> **{str(health).upper()}**: {words}"
    if todo := next_step(report):
        yield f"**{LABEL}** {inline(fitted(todo, _MESSAGE))}"
    yield inline(" · ".join(fitted(fact, _FACT) for fact in facts(report)))


def _findings(report: Report) -> Iterator[str]:
    if report.findings:
        rows = [_finding(finding) for finding in report.findings[:FINDINGS]]
        yield table((tally(report), "where", "what"), rows)
    fixes = [finding for finding in report.findings[:FINDINGS] if finding.fix]
    if fixes:
        lines = (f"{code(one.code)}:\n\n{_fix(one)}" for one in fixes)
        yield folded("The lines as they should be", "\n\n".join(lines))
    if len(report.findings) > FINDINGS:
        yield f"{ELLIPSIS} and {plural(len(report.findings) - FINDINGS, 'more finding')}"
    if report.suppressed:
        yield f"{plural(len(report.suppressed), 'suppressed finding')}"


def _finding(finding: Finding) -> tuple[str, str, str]:
    origin = finding.origin
    spot = location(origin.file, origin.line) if origin else ""
    place = code(fitted(spot, _FACT)) if spot else named(origin.module) if origin else NONE
    head = f"{finding.severity} {code(finding.code)} {inline(fitted(finding.name, _FACT))}"
    return head, place, inline(fitted(finding.message, _MESSAGE))


def _fix(finding: Finding) -> str:
    return fence("\n".join(corrected(finding)), "python")


def _plan(report: Report) -> Iterator[str]:
    if report.plan is None and not report.claims:
        return
    parts = [part for part in plan(report) if not part.startswith("```")]
    yield folded(f"Plan: {how_tried(report)}", "\n\n".join(parts))
    lines = patch_lines(report.patch).splitlines()
    if lines and len(lines) <= _PATCH:
        diff = report.patch.startswith("---")
        block = fence("\n".join(lines), "diff" if diff else "python")
        yield folded("The patch" if diff else "The lines to paste", block)


def _layers(report: Report) -> Iterator[str]:
    rows = [row for row in layer_rows(report) if row.troubled]
    if rows:
        titles, texts = layer_cells(rows[:LAYERS])
        cells = [[named(row.module), *map(inline, text)] for row, text in zip(rows, texts, strict=False)]
        first = f", the first {LAYERS}" if len(rows) > LAYERS else ""
        yield folded(f"{plural(len(rows), 'layer')} with trouble{first}", table(["module", *titles], cells))


def _curve(report: Report) -> Iterator[str]:
    lines = drawn_curve(report)
    if lines:
        drawing = fence("\n".join(str(line).rstrip() for line in lines))
        yield folded("What each loss scale would lose", f"{drawing}\n\n{inline(measured(report))}")
