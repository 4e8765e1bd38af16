"""The report as a comment on a pull request: the verdict, what is wrong, what to do; the rest is counted."""

from collections.abc import Iterable, Iterator
from functools import partial

from ampcheck.renderers.drawing import NONE, fitted
from ampcheck.renderers.markdown import laid_out, patch_lines, picture_text
from ampcheck.renderers.markup import code, fence, folded, inline, table
from ampcheck.renderers.next_step import LABEL, next_step
from ampcheck.renderers.sections.findings import spot
from ampcheck.renderers.sections.plan import plan
from ampcheck.renderers.sections.tables import layers, scales
from ampcheck.renderers.view import Code, Section, Table, Tone, cut, tone_of
from ampcheck.renderers.words import corrected, facts, tally
from ampcheck.values.findings import Finding
from ampcheck.values.report import Report
from ampcheck.values.wording import ELLIPSIS, plural

#: Characters that GitHub takes in a comment.
LIMIT = 65_536
FINDINGS, LAYERS = 10, 10
_MESSAGE, _FACT = 400, 40
#: Lines of a patch that are worth a place in a comment.
_PATCH = 200
_ALERTS = {Tone.GOOD: "TIP", Tone.UNSURE: "WARNING", Tone.BAD: "CAUTION"}


def render(report: Report) -> str:
    """Return what a reviewer has to know, at most as long as a comment may be."""
    sections = [section for make in (plan, _troubled, scales) if (section := make(report)) and section.blocks]
    return fitting(
        [*_head(report), *_findings(report), *(part for one in sections for part in _section(report, one))]
    )


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
    yield f"> [!{_ALERTS[tone_of(health)]}]\n> **{str(health).upper()}**: {words}"
    if todo := next_step(report):
        yield f"**{LABEL}** {inline(fitted(todo, _MESSAGE))}"
    yield inline(" · ".join(fitted(fact, _FACT) for fact in facts(report)))


def _findings(report: Report) -> Iterator[str]:
    shown, rest = cut(report.findings, FINDINGS, "finding")
    if shown:
        yield table((tally(report), "where", "what"), map(_finding, shown))
    fixes = [finding for finding in shown if finding.fix]
    if fixes:
        lines = (f"{code(one.code)}:\n\n" + fence("\n".join(corrected(one)), "python") for one in fixes)
        yield folded("The lines as they should be", "\n\n".join(lines))
    if rest:
        yield rest
    if report.suppressed:
        yield plural(len(report.suppressed), "suppressed finding")


def _finding(finding: Finding) -> tuple[str, str, str]:
    place = spot(finding)
    head = f"{finding.severity} {code(finding.code)} {inline(fitted(finding.name, _FACT))}"
    return head, code(fitted(place, _FACT)) if place else NONE, inline(fitted(finding.message, _MESSAGE))


def _troubled(report: Report) -> Section | None:
    """Return the section of the layers with those alone that are with trouble."""
    made = layers(report)
    table = made.blocks[0] if made is not None else None
    if made is None or not isinstance(table, Table) or not table.troubled:
        return None
    rows = table.rows[: table.troubled]
    return Section(made.key, made.title, made.about, (Table("troubled layer", table.columns, rows),))


def _section(report: Report, section: Section) -> Iterator[str]:
    """Yield a section that is opened by a click; a patch has a line to open of its own, where it is short."""
    limit = LAYERS if section.key == "layers" else None
    blocks = [block for block in section.blocks if not isinstance(block, Code)]
    parts = [part for block in blocks for part in laid_out(block, limit, partial(picture_text, report))]
    if parts:
        yield folded(f"{section.title}: {inline(section.about)}", "\n\n".join(parts))
    for block in section.blocks:
        if isinstance(block, Code) and len(block.text.splitlines()) <= _PATCH:
            yield folded(block.title, fence(patch_lines(block.text), "diff" if block.diff else "python"))
