"""The report for a terminal: the answer first, then the evidence, most important first."""

from functools import partial
from typing import TYPE_CHECKING

from ampcheck.diagnose.caveats import caveats
from ampcheck.renderers.drawing import cells, fitted
from ampcheck.renderers.layout import Parts, bullet, drawn, hanging, nothing_drawn, text
from ampcheck.renderers.next_step import answer_lines
from ampcheck.renderers.pictures import drawn_curve, drawn_landscape
from ampcheck.renderers.sections import ANSWER, sections
from ampcheck.renderers.terminal_blocks import FACT, Fit, section_parts
from ampcheck.renderers.terminal_table import STYLES
from ampcheck.renderers.view import Picture, Section, tone_of
from ampcheck.renderers.words import facts
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase
from ampcheck.values.verdict import Health
from ampcheck.values.wording import clean, plural

if TYPE_CHECKING:
    from rich.text import Text

#: Under this the columns no longer fit; a terminal that is narrower will wrap.
NARROWEST = 60
#: Columns that the target's name in the first line has at least, with what stands before it.
NAME = 30
#: How notes begin that say that less was seen than asked for: they stand on the first screen too.
LIMITING = ("layers only", "sampled:", "batch, weights and gradients are those of")


@nothing_drawn
def render(
    report: Report, *, width: int = 100, color: bool = False, details: bool = False, short: bool = False
) -> str:
    """Return the report as lines no longer than a width; `details` leaves nothing out, `short` the tables."""
    wide, first = max(width, NARROWEST), short and not report.dry
    draw = partial(_picture, report, wide, details=details)
    fit = Fit(wide, details, report.mode == "infer", draw)
    every = sections(report, *((ANSWER,) if first else ()))
    shown = [section for section in every if not first or _is_short(report, section)]
    parts = [*_header(report, wide), *_answer(report)]
    parts += [part for one in shown for part in section_parts(one, fit)]
    return drawn([*parts, *(_more(report) if first else ())], wide, color=color)


def _is_short(report: Report, section: Section) -> bool:
    """Tell whether a section stands on the first screen: what to do says all that an empty plan would."""
    if section.key == "plan" and (not section.blocks or _goes_without_plan(report)):
        return False
    return section.key != "loop"


def _header(report: Report, width: int) -> Parts:
    shown = [fitted(fact, FACT) for fact in facts(report)]
    target = clean(report.target)
    while cells(" · ".join(["", *shown])) > width - min(NAME, cells(f"ampcheck {target}")):
        shown.pop()
    tail = "".join(f" · {fact}" for fact in shown)
    name = fitted(target, width - cells(tail) - len("ampcheck "))
    yield text(("ampcheck ", "dim"), (name, "bold"), (tail, "dim"))
    yield ""


def _answer(report: Report) -> Parts:
    health, sentence = report.verdict.word, report.verdict.sentence
    badge = text((f" {str(health).upper()} ", f"bold {STYLES[tone_of(health)]} reverse"))
    yield hanging(badge, text((sentence, "bold")))
    for label, words in answer_lines(report):
        yield hanging(text((label, "bold cyan")), text(words), 2)
    for limits, caveat in caveats(report):
        yield bullet("!", caveat, "bold yellow") if limits else bullet("·", caveat, "dim")


def _goes_without_plan(report: Report) -> bool:
    """Tell whether the line on what to do says all that a plan would: nothing is to be changed."""
    trains = report.mode == "train" and report.recipes is None
    return trains and report.verdict.word in {Health.SAFE, Health.PARTLY_AUDITED} and not report.findings


def _more(report: Report) -> Parts:
    """Yield the notes that limit what was seen, and where the rest of the report is."""
    for note in report.notes:
        if note.startswith(LIMITING):
            yield bullet("!", clean(note), "bold yellow")
    notes = f", {plural(len(report.notes), 'note')}" if report.notes else ""
    if report.findings or not _goes_without_plan(report):
        yield ""
    rest = f"-v shows layers, gradients, loss scales, casts{notes}; -o report.html writes the page"
    yield hanging(text(("More:", "bold cyan")), text((rest, "dim")), 2)


def _picture(report: Report, width: int, picture: Picture, *, details: bool) -> list["Text"]:
    """Return a picture made of characters; an activation's waits until details are asked for."""
    if picture.name == "scales":
        return drawn_curve(report)
    phase = {"gradients": Phase.BACKWARD, "activations": Phase.FORWARD}.get(picture.name)
    if phase is None or (picture.folded and not details):
        return []
    return drawn_landscape(report, phase, width - 2)
