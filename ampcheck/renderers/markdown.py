"""The report as Markdown: reads well as it is, and better where it is rendered."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from urllib.parse import quote

from ampcheck.diagnose.caveats import caveats
from ampcheck.diagnose.rules import RULES
from ampcheck.diagnose.rules.manual import page
from ampcheck.renderers.drawing import NONE, module_name
from ampcheck.renderers.markup import bullets, code, fence, folded, inline, prose, table
from ampcheck.renderers.next_step import answer_lines
from ampcheck.renderers.pictures import drawn_curve, drawn_landscape
from ampcheck.renderers.scale_curve import course_svg
from ampcheck.renderers.sections import sections
from ampcheck.renderers.svg import curve_svg, landscape_svg
from ampcheck.renderers.view import Block, Code, Facts, Findings, Items, Kind, Picture, Section, Table, cut
from ampcheck.renderers.words import consequences, corrected, facts, figures, operation
from ampcheck.values.findings import Finding
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase
from ampcheck.values.wording import indented_line, location

FINDINGS = 50
#: Rows of a table that are shown.
LIMITS = {"suppressed": 50, "layers": 40, "casts": 20, "dtypes": 60, "loop": 40}
#: Columns of a drawing made of characters: what a page shows without scrolling.
_DRAWING = 96
_NAME = 60
_NO_FILES: Mapping[str, str] = MappingProxyType({})


def render(report: Report, files: Mapping[str, str] = _NO_FILES) -> str:
    """Return the whole report; pictures that lie in files are shown, others drawn with characters."""
    parts = [*_head(report), *(part for one in sections(report) for part in _section(report, one, files))]
    return "\n\n".join(parts) + "\n"


def pictures(report: Report) -> dict[str, str]:
    """Return the pictures of a report as SVG, by name; only those on which there is something to see."""
    drawn = {
        "activations": landscape_svg(report, Phase.FORWARD),
        "gradients": landscape_svg(report, Phase.BACKWARD),
        "scales": curve_svg(report),
        "course": course_svg(report),
    }
    return {name: picture for name, picture in drawn.items() if picture}


def _head(report: Report) -> Iterator[str]:
    health, sentence = report.verdict.word, report.verdict.sentence
    yield f"# ampcheck: {code(report.target)}"
    yield inline(" · ".join(facts(report)))
    yield f"**{str(health).upper()}**: {inline(sentence)}"
    lines = [f"**{label}** {inline(words)}" for label, words in answer_lines(report)]
    lines += [inline(caveat) for _, caveat in caveats(report)]
    if lines:
        yield bullets(lines)


def _section(report: Report, section: Section, files: Mapping[str, str]) -> Iterator[str]:
    yield f"## {section.title}: {inline(section.about)}" if section.about else f"## {section.title}"
    for block in section.blocks:
        yield from laid_out(
            block, LIMITS.get(section.key), lambda picture: picture_text(report, picture, files)
        )


def laid_out(block: Block, limit: int | None = None, draw: Callable[[Picture], str] = repr) -> Iterator[str]:
    """Yield a block of a section as Markdown."""
    rest = ""
    if isinstance(block, str):
        yield prose(block)
    elif isinstance(block, Findings):
        shown, rest = cut(block.findings, FINDINGS, "finding")
        for finding in shown:
            yield from _finding(finding)
    elif isinstance(block, Table):
        part, rest = block.cut(limit)
        yield rows(part)
    elif isinstance(block, Items):
        yield bullets(
            (f"{inline(item.lead)} " if item.lead else "")
            + (inline if item.lead else prose)(item.words)
            + (f"\n  - {prose(item.below)}" if item.below else "")
            for item in block.items
        )
    elif isinstance(block, Facts):
        yield bullets(
            f"{prose(fact.label)}: {', '.join(_cell(value, fact.kind) for value in fact.values)}"
            for fact in block.facts
        )
    elif isinstance(block, Code):
        yield fence(patch_lines(block.text), "diff" if block.diff else "python")
    elif drawing := draw(block):
        yield folded(block.about, drawing) if block.folded else drawing
    if rest:
        yield rest


def rows(part: Table) -> str:
    """Return a table without the columns that say nothing."""
    part = part.filled()
    titles = [column.title + ">" * (column.kind is Kind.NUMBER) for column in part.columns]
    kinds = [column.kind for column in part.columns]
    return table(
        titles, [[_cell(text, kind) for text, kind in zip(row, kinds, strict=True)] for row in part.rows]
    )


def _cell(text: str, kind: Kind) -> str:
    if not text:
        return NONE
    if kind is Kind.MODULE:
        return named(text)
    return code(text) if kind is Kind.CODE else inline(text)


def picture_text(report: Report, picture: Picture, files: Mapping[str, str] = _NO_FILES) -> str:
    """Return a link to a picture that lies in a file, else its drawing made of characters."""
    if picture.name in files:
        return f"![{picture.about}](<{quote(os.fsencode(files[picture.name]))}>)"
    phase = {"gradients": Phase.BACKWARD, "activations": Phase.FORWARD}.get(picture.name)
    if phase is None and picture.name != "scales":
        return ""
    lines: Sequence[object] = drawn_landscape(report, phase, _DRAWING) if phase else drawn_curve(report)
    return fence("\n".join(str(line).rstrip() for line in lines))


def _finding(finding: Finding) -> Iterator[str]:
    origin = finding.origin
    at = f" at {code(location(origin.file, origin.line))}" if origin and origin.file else ""
    yield f"### {finding.severity} {code(finding.code)} {inline(finding.name)}{at}"
    yield prose(finding.message)
    where = operation(finding)
    shown = [f"{named(origin.module)} · {inline(' · '.join(where))}"] if origin and where else []
    shown += [prose(" · ".join(figures(finding)))] if figures(finding) else []
    shown += [inline(consequence) for consequence in consequences(finding)]
    if finding.code in RULES:
        shown.append(f"what to do: {inline(page(finding.code).sections['What to do'])}")
    if shown:
        yield bullets(shown)
    if finding.fix:
        yield fence("\n".join(corrected(finding)), "python")


def named(module: str) -> str:
    """Return the name of a module, shortened if it is very long, as code."""
    return code(module_name(module, _NAME))


def patch_lines(patch: str) -> str:
    """Return a patch with its indents and without anything that cannot be seen."""
    return "\n".join(indented_line(line).rstrip() for line in patch.splitlines())
