"""The report for a terminal: the answer first, then the evidence, most important first."""

from dataclasses import dataclass

from ampcheck.diagnose.caveats import caveats
from ampcheck.diagnose.tables import cast_rows, dtype_rows, layer_rows
from ampcheck.renderers.advice import plan_lines
from ampcheck.renderers.drawing import NONE, TIMES, cells, fitted, module_name
from ampcheck.renderers.layers import layer_table
from ampcheck.renderers.layout import (
    Parts,
    bullet,
    drawn,
    fixed,
    hanging,
    indented,
    nothing_drawn,
    text,
    title,
)
from ampcheck.renderers.loop import loop_lines
from ampcheck.renderers.next_step import answer_lines
from ampcheck.renderers.pictures import drawn_curve, drawn_landscape
from ampcheck.renderers.recipes import terminal_tables
from ampcheck.renderers.words import corrected, facts, figures, measured, tally
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import SHORT_DTYPE
from ampcheck.values.report import Report
from ampcheck.values.trace import CastCount, Phase, Site
from ampcheck.values.verdict import Health
from ampcheck.values.wording import (
    clean,
    count,
    location,
    plural,
    power,
    short_count,
    size,
)

#: Under this the columns no longer fit; a terminal that is narrower will wrap.
NARROWEST = 60
FINDINGS = 12
LAYERS = 20
CASTS = 5
DTYPES = 20
#: Columns that the target's name in the first line has at least, with what stands before it.
NAME = 30
#: How notes begin that say that less was seen than asked for: they stand on the first screen too.
LIMITING = ("layers only", "sampled:", "batch, weights and gradients are those of")
#: Columns for one fact about the environment.
FACT = 40

_HEALTH_STYLES = {
    Health.SAFE: "bold green",
    Health.PARTLY_AUDITED: "bold yellow",
    Health.RISK: "bold yellow",
    Health.UNSAFE: "bold red",
    Health.UNKNOWN: "bold yellow",
}
_SEVERITY_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold blue"}


@dataclass(frozen=True, slots=True)
class _View:
    """A report and how much of it fits."""

    report: Report
    width: int
    details: bool

    def limit(self, number: int) -> int | None:
        """Return how many lines of a kind are shown, None for all."""
        return None if self.details else number


@nothing_drawn
def render(
    report: Report, *, width: int = 100, color: bool = False, details: bool = False, short: bool = False
) -> str:
    """Return the report as lines no longer than a width; `details` leaves nothing out, `short` the tables."""
    view = _View(report, max(width, NARROWEST), details)
    answer = (_header, _answer, _findings)
    tables = (_layers, _gradients, _activations, _curve, _dtypes, _casts, _rest)
    recipes = (_plan, lambda shown: terminal_tables(shown.report))
    sections = (*answer, _loop, _suppressed, *recipes, *tables)
    if short and not report.dry:
        sections = (*answer, _suppressed, *(() if _goes_without_plan(report) else recipes), _more)
    return drawn((part for section in sections for part in section(view)), view.width, color=color)


def _header(view: _View) -> Parts:
    shown = [fitted(fact, FACT) for fact in facts(view.report)]
    target = clean(view.report.target)
    while cells(" · ".join(["", *shown])) > view.width - min(NAME, cells(f"ampcheck {target}")):
        shown.pop()
    tail = "".join(f" · {fact}" for fact in shown)
    name = fitted(target, view.width - cells(tail) - len("ampcheck "))
    yield text(("ampcheck ", "dim"), (name, "bold"), (tail, "dim"))
    yield ""


def _answer(view: _View) -> Parts:
    report = view.report
    health, sentence = report.verdict.word, report.verdict.sentence
    badge = text((f" {str(health).upper()} ", f"{_HEALTH_STYLES[health]} reverse"))
    yield hanging(badge, text((sentence, "bold")))
    for label, words in answer_lines(report):
        yield hanging(text((label, "bold cyan")), text(words), 2)
    for limits, caveat in caveats(report):
        yield bullet("!", caveat, "bold yellow") if limits else bullet("·", caveat, "dim")


def _goes_without_plan(report: Report) -> bool:
    """Tell whether the line on what to do says all that a plan would: nothing is to be changed."""
    trains = report.mode == "train" and report.recipes is None
    return trains and report.verdict.word in {Health.SAFE, Health.PARTLY_AUDITED} and not report.findings


def _more(view: _View) -> Parts:
    """Yield the notes that limit what was seen, and where the rest of the report is."""
    for note in view.report.notes:
        if note.startswith(LIMITING):
            yield bullet("!", clean(note), "bold yellow")
    notes = f", {plural(len(view.report.notes), 'note')}" if view.report.notes else ""
    if view.report.findings or not _goes_without_plan(view.report):
        yield ""
    rest = f"-v shows layers, gradients, loss scales, casts{notes}; -o report.html writes the page"
    yield hanging(text(("More:", "bold cyan")), text((rest, "dim")), 2)


def _findings(view: _View) -> Parts:
    findings = view.report.findings
    if not findings:
        return
    yield from title("Findings", tally(view.report))
    for finding in findings[: view.limit(FINDINGS)]:
        yield from _finding(finding, view.width)
    if len(findings) > FINDINGS and not view.details:
        yield text((f"  … and {count(len(findings) - FINDINGS)} more", "dim"))


def _suppressed(view: _View) -> Parts:
    """Yield a line for each finding that does not count."""
    held = view.report.suppressed
    if not held:
        return
    yield from title(
        "Suppressed", f"{plural(len(held), 'finding')} that {'does' if len(held) == 1 else 'do'} not count"
    )
    for one in held[: view.limit(FINDINGS)]:
        finding = one.finding
        at = f"  {fitted(_spot(finding), FACT)}" if finding.origin else ""
        head = f"{finding.severity}[{clean(finding.code)}] {clean(finding.name)}"
        yield bullet("·", f"{head}{at}  {clean(one.words)}", "dim")
    if len(held) > FINDINGS and not view.details:
        yield text((f"  … and {count(len(held) - FINDINGS)} more", "dim"))


def _spot(finding: Finding) -> str:
    site = finding.origin
    return (location(site.file, site.line) or module_name(site.module, FACT)) if site else ""


def _finding(finding: Finding, width: int) -> Parts:
    style = _SEVERITY_STYLES[finding.severity]
    origin = finding.origin
    head = text((f"{finding.severity}[{clean(finding.code)}]", style), " ", (clean(finding.name), "bold"))
    at = location(origin.file, origin.line) if origin else ""
    if at:
        head.append(" " * 2)
        head.append(fitted(at, max(width - head.cell_len - 2, 20)), "cyan")
    yield from fixed([head])
    yield indented(text(clean(finding.message)), 4)
    for follower in finding.follows:
        yield hanging(text(("    └", "dim")), text((clean(follower), "dim")), 2)
    shown = [*([_where(origin)] if origin and origin.dtype else []), *figures(finding)]
    if shown:
        yield indented(text((" · ".join(shown), "dim")), 4)
    yield from fixed(
        [text(("      ", ""), (fitted(line, width - 6), "green")) for line in corrected(finding)]
    )


def _where(site: Site) -> str:
    names = (module_name(site.module, 40), fitted(clean(site.op or site.slot), 30), _short(site.dtype))
    return " · ".join(names)


def _loop(view: _View) -> Parts:
    return loop_lines(view.report, details=view.details)


def _plan(view: _View) -> Parts:
    return plan_lines(view.report)


def _layers(view: _View) -> Parts:
    rows = layer_rows(view.report)
    if not rows:
        return
    troubled = sum(row.troubled for row in rows)
    order = f"{count(troubled)} with trouble, shown first" if troubled else "none with trouble"
    yield from title("Layers", f"{count(len(rows))}, {order}")
    shown = rows[: view.limit(LAYERS)]
    yield from fixed(layer_table(shown, view.width - 2))
    rest = rows[len(shown) :]
    if rest:
        left = troubled - sum(row.troubled for row in shown)
        which = f"{count(left)} of them with trouble" if left else "without trouble"
        yield text((f"  … and {plural(len(rest), 'more layer')}, {which}", "dim"))


def _gradients(view: _View) -> Parts:
    report = view.report
    scale = f" before the loss scale of {power(report.log2_scale)}" if report.log2_scale else ""
    return _landscape(
        view, Phase.BACKWARD, "Gradients", f"held in {report.precision}, by powers of two{scale}"
    )


def _activations(view: _View) -> Parts:
    report = view.report
    if not view.details and not any(finding.kind.startswith("forward") for finding in report.findings):
        return ()
    return _landscape(view, Phase.FORWARD, "Activations", f"held in {report.precision}, by powers of two")


def _landscape(view: _View, phase: Phase, name: str, about: str) -> Parts:
    lines = drawn_landscape(view.report, phase, view.width)
    if lines:
        yield from title(name, about)
        yield from fixed(lines)


def _curve(view: _View) -> Parts:
    lines = drawn_curve(view.report)
    if lines:
        yield from title("Loss scale", "gradient elements that would be lost, predicted from the FP32 run")
        yield from fixed(lines)
        yield indented(text((measured(view.report), "dim")), 2)


def _dtypes(view: _View) -> Parts:
    rows = dtype_rows(view.report)
    if not rows:
        return
    yield from title("Dtypes", "elements of operations' results, in half precision and in FP32 or wider")
    yield from fixed([text((f"{'forward: half':>15}{'FP32':>8}{'backward: half':>18}{'FP32':>8}", "dim"))])
    for row in rows[: view.limit(DTYPES)]:
        forward = f"{_cell(row.forward_half):>15}{_cell(row.forward_wide):>8}"
        backward = f"{_cell(row.backward_half):>18}{_cell(row.backward_wide):>8}"
        yield from fixed([text(forward, backward, "  ", (fitted(clean(row.op), FACT), "bold"))])
    if len(rows) > DTYPES and not view.details:
        yield text((f"  … and {plural(len(rows) - DTYPES, 'more row')}", "dim"))


def _cell(elements: int) -> str:
    return short_count(elements) if elements else NONE


def _casts(view: _View) -> Parts:
    rows = cast_rows(view.report)
    if not rows:
        return
    whole = sum((number for _, number in rows), CastCount())
    about = f"{plural(whole.calls, 'call')}, {size(whole.bytes)} written"
    if whole.round_trips:
        about += f", {plural(whole.round_trips, 'call')} only undoing an earlier cast"
    yield from title("Casts", about)
    for cast, number in rows[: view.limit(CASTS)]:
        kind = f"{_short(cast.source)} → {_short(cast.target)}"
        line = text(
            f"{size(number.bytes):>8}", f"  {short_count(number.calls) + TIMES:>6}", f"  {kind:<12}  "
        )
        at = fitted(location(cast.file, cast.line), view.width * 2 // 5)
        undo = f"  undoes {short_count(number.round_trips)}" if number.round_trips else ""
        line.append(module_name(cast.module, view.width - 2 - line.cell_len - cells(at) - len(undo) - 2))
        line.append(f"  {at}", "cyan")
        line.append(undo, "yellow")
        yield from fixed([line])
    if len(rows) > CASTS and not view.details:
        yield text((f"  … and {plural(len(rows) - CASTS, 'more place')}", "dim"))


def _rest(view: _View) -> Parts:
    report = view.report
    low = report.low
    seen = f"{plural(low.operations, 'operation')} seen, {plural(low.measured, 'tensor')} measured"
    if report.not_audited:
        yield from title("Not audited", f"left out of the figures above · {seen}")
        for what, times in sorted(report.not_audited.items(), key=lambda item: -item[1]):
            yield bullet(f"{count(times)}{TIMES}", clean(what))
    elif low.sites:
        yield from title("Not audited", f"nothing · {seen}")
    if report.notes:
        yield from title("Notes")
        yield from (bullet("·", clean(note)) for note in report.notes)
    environment = " · ".join(
        fitted(f"{clean(name)} {clean(text)}", FACT) for name, text in report.environment.items()
    )
    if environment:
        yield ""
        yield indented(text((environment, "dim")), 0)


def _short(dtype: str) -> str:
    return SHORT_DTYPE.get(dtype, clean(dtype))
