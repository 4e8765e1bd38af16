"""The report as Markdown: reads well as it is, and better where it is rendered."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from urllib.parse import quote

from ampcheck.diagnose.caveats import caveats
from ampcheck.diagnose.rules import RULES
from ampcheck.diagnose.rules.manual import page
from ampcheck.diagnose.tables import cast_rows, dtype_rows, layer_rows
from ampcheck.renderers.advice import how_tried, scaler_call, unchanged
from ampcheck.renderers.drawing import NONE, module_name
from ampcheck.renderers.layers import layer_cells
from ampcheck.renderers.markdown_loop import course_svg
from ampcheck.renderers.markdown_loop import section as loop_section
from ampcheck.renderers.markup import bullets, code, fence, folded, inline, prose, table
from ampcheck.renderers.next_step import answer_lines
from ampcheck.renderers.pictures import drawn_curve, drawn_landscape
from ampcheck.renderers.recipes import markdown_tables
from ampcheck.renderers.svg import curve_svg, landscape_svg
from ampcheck.renderers.words import consequences, corrected, facts, figures, measured, tally
from ampcheck.values.findings import Finding, Suppressed
from ampcheck.values.formats import SHORT_DTYPE
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase
from ampcheck.values.wording import ELLIPSIS, clean, count, location, plural, power, size

FINDINGS, LAYERS, CASTS, DTYPES = 50, 40, 20, 60
#: Columns of a drawing made of characters: what a page shows without scrolling.
_DRAWING = 96
_NAME = 60
_NO_FILES: Mapping[str, str] = MappingProxyType({})


def render(report: Report, files: Mapping[str, str] = _NO_FILES) -> str:
    """Return the whole report; pictures that lie in files are shown, others drawn with characters."""
    sections = (
        _head,
        _findings,
        _suppressed,
        _plan,
        markdown_tables,
        lambda shown: loop_section(shown, files.get("course", "")),
        _layers,
        _landscapes(files),
        _curve(files),
        _dtypes,
        _casts,
        _rest,
    )
    return "\n\n".join(part for section in sections for part in section(report)) + "\n"


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
    if lines:
        yield bullets(lines)
    asides = [inline(caveat) for _, caveat in caveats(report)]
    if asides:
        yield bullets(asides)


def _findings(report: Report) -> Iterator[str]:
    if not report.findings:
        return
    yield f"## Findings: {tally(report)}"
    for finding in report.findings[:FINDINGS]:
        yield from _finding(finding)
    if len(report.findings) > FINDINGS:
        yield f"{ELLIPSIS} and {plural(len(report.findings) - FINDINGS, 'more finding')}"


def _finding(finding: Finding) -> Iterator[str]:
    origin = finding.origin
    at = f" at {code(location(origin.file, origin.line))}" if origin and origin.file else ""
    yield f"### {finding.severity} {code(finding.code)} {inline(finding.name)}{at}"
    yield prose(finding.message)
    shown = []
    if origin and origin.dtype:
        held = inline(SHORT_DTYPE.get(origin.dtype, origin.dtype))
        shown.append(f"{named(origin.module)}: {inline(origin.op or origin.slot)} in {held}")
    shown += [prose(" · ".join(figures(finding)))] if figures(finding) else []
    shown += [inline(consequence) for consequence in consequences(finding)]
    if finding.code in RULES:
        shown.append(f"what to do: {inline(page(finding.code).sections['What to do'])}")
    if shown:
        yield bullets(shown)
    if finding.fix:
        yield fence("\n".join(corrected(finding)), "python")


def _suppressed(report: Report) -> Iterator[str]:
    held = report.suppressed
    if held:
        yield f"## Suppressed: {plural(len(held), 'finding')}"
        yield table(("finding", "where", "why it does not count"), map(suppressed_cells, held[:FINDINGS]))
    if len(held) > FINDINGS:
        yield f"{ELLIPSIS} and {plural(len(held) - FINDINGS, 'more finding')}"


def suppressed_cells(one: Suppressed) -> tuple[str, str, str]:
    """Return what was found, where, and who said that it does not count."""
    found, origin = one.finding, one.finding.origin
    spot = location(origin.file, origin.line) or module_name(origin.module, _NAME) if origin else NONE
    return f"{found.severity} {code(found.code)} {inline(found.name)}", code(spot), inline(one.words)


def named(module: str) -> str:
    """Return the name of a module, shortened if it is very long, as code."""
    return code(module_name(module, _NAME))


def _plan(report: Report) -> Iterator[str]:
    if report.plan is None and not report.claims:
        return
    yield f"## Plan: {how_tried(report)}"
    yield from plan(report)


def plan(report: Report) -> Iterator[str]:
    """Yield what to train with, each precision as it is, the claims and the patch."""
    steps = []
    if report.plan is not None:
        kept = [*report.plan.fp32_modules, *report.plan.fp32_lines]
        steps.append(f"precision: {inline(report.plan.precision)}")
        steps += [f"in FP32: {', '.join(map(code, kept))}"] if kept else []
        steps += [f"recipe: {code(report.plan.recipe)}"] if report.plan.recipe else []
        steps += [f"in bf16: {inline(report.plan.in_bf16)}"] if report.plan.in_bf16 else []
        steps += [f"scaler: {code(scaler_call(report.plan.scaler))}"] if report.plan.scaler else []
    for name, state, words in unchanged(report):
        steps.append(inline(f"{name} without changes: {state}{words}"))
    if steps:
        yield bullets(steps)
    if report.claims:
        titles = ("claim", "re-run", "before", "after")
        texts = ((v.claim, str(v.tried), v.before, v.after) for v in report.claims)
        yield table(titles, [[inline(text) or NONE for text in row] for row in texts])
    if report.patch:
        yield fence(patch_lines(report.patch), "diff" if report.patch.startswith("---") else "python")
    if report.advice:
        yield bullets(map(prose, report.advice))


def patch_lines(patch: str) -> str:
    """Return a patch with its indents and without anything that cannot be seen."""
    inners = [(line, line[1:].lstrip()) for line in patch.splitlines()]
    return "\n".join((line[: len(line) - len(inner)] + clean(inner)).rstrip() for line, inner in inners)


def _layers(report: Report) -> Iterator[str]:
    rows = layer_rows(report)
    if not rows:
        return
    troubled = sum(row.troubled for row in rows)
    yield f"## Layers: {count(len(rows))}, {count(troubled) if troubled else 'none'} with trouble"
    titles, texts = layer_cells(rows[:LAYERS])
    cells = [[named(row.module), *map(inline, text)] for row, text in zip(rows, texts, strict=False)]
    yield table(["module", *titles], cells)
    if len(rows) > LAYERS:
        left = troubled - sum(row.troubled for row in rows[:LAYERS])
        which = f"{count(left)} of them with trouble" if left else "without trouble"
        yield f"{ELLIPSIS} and {plural(len(rows) - LAYERS, 'more layer')}, {which}"


def _landscapes(files: Mapping[str, str]) -> Callable[[Report], Iterator[str]]:
    """Return the section of where the numbers lie, for pictures that lie in some files."""

    def section(report: Report) -> Iterator[str]:
        for name, phase in (("gradients", Phase.BACKWARD), ("activations", Phase.FORWARD)):
            lines = drawn_landscape(report, phase, _DRAWING)
            if lines:
                scaled = phase is Phase.BACKWARD and report.log2_scale
                scale = f" before the loss scale of {power(report.log2_scale)}" if scaled else ""
                yield f"## {name.capitalize()} by powers of two{scale}"
                drawing = _shown(name, "where the numbers of each layer lie", lines, files)
                yield drawing if phase is Phase.BACKWARD else folded("what the layers compute", drawing)

    return section


def _curve(files: Mapping[str, str]) -> Callable[[Report], Iterator[str]]:
    """Return the section of what the loss scales would lose, for pictures that lie in some files."""

    def section(report: Report) -> Iterator[str]:
        lines = drawn_curve(report)
        if lines:
            yield "## Loss scale: gradient elements that would be lost, predicted from the FP32 run"
            yield _shown("scales", "what each loss scale would lose", lines, files)
            yield prose(measured(report))

    return section


def _shown(name: str, about: str, lines: Iterable[object], files: Mapping[str, str]) -> str:
    if name in files:
        return f"![{about}](<{quote(files[name])}>)"
    return fence("\n".join(str(line).rstrip() for line in lines))


def _dtypes(report: Report) -> Iterator[str]:
    rows = dtype_rows(report)
    if not rows:
        return
    yield "## Dtypes: elements of operations' results, in half precision and in FP32 or wider"
    titles = (
        "operation",
        "forward, half>",
        "forward, FP32>",
        "backward, half>",
        "backward, FP32>",
        "places>",
    )
    cells = [
        (
            code(row.op),
            count(row.forward_half),
            count(row.forward_wide),
            count(row.backward_half),
            count(row.backward_wide),
            count(row.places),
        )
        for row in rows[:DTYPES]
    ]
    yield table(titles, cells)
    if len(rows) > DTYPES:
        yield f"{ELLIPSIS} and {plural(len(rows) - DTYPES, 'more row')}"


def _casts(report: Report) -> Iterator[str]:
    rows = cast_rows(report)
    if not rows:
        return
    yield f"## Casts: {plural(sum(number.calls for _, number in rows), 'call')}"
    cells = []
    for cast, number in rows[:CASTS]:
        kind = f"{SHORT_DTYPE.get(cast.source, cast.source)} → {SHORT_DTYPE.get(cast.target, cast.target)}"
        undone = count(number.round_trips) if number.round_trips else NONE
        at = code(location(cast.file, cast.line))
        cells.append([size(number.bytes), count(number.calls), undone, inline(kind), named(cast.module), at])
    yield table(("written>", "calls>", "undoing>", "cast", "module", "line"), cells)
    if len(rows) > CASTS:
        yield f"{ELLIPSIS} and {plural(len(rows) - CASTS, 'more place')}"


def _rest(report: Report) -> Iterator[str]:
    low = report.low
    if report.not_audited or low.sites:
        yield "## Not audited"
        seen = f"{plural(low.operations, 'operation')} seen, {plural(low.measured, 'tensor')} measured"
        missed = sorted(report.not_audited.items(), key=lambda item: -item[1])
        lines = [f"{count(times)} × {inline(what)}" for what, times in missed]
        yield bullets([*lines, seen] if lines else [f"nothing was left out: {seen}"])
    if report.notes:
        yield "## Notes"
        yield bullets(map(prose, report.notes))
    if report.environment:
        yield "## Environment"
        yield table(("", ""), [(inline(name), inline(text)) for name, text in report.environment.items()])
