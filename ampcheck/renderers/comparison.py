"""What became of a report, for a terminal: the answers, the findings, the plan, and the layers that moved."""

from ampcheck.compare.comparison import Comparison
from ampcheck.renderers.drawing import cells, fitted
from ampcheck.renderers.layout import Parts, drawn, hanging, nothing_drawn, text
from ampcheck.renderers.sections.comparison import answers, facts, outcome, sections, summary
from ampcheck.renderers.terminal_blocks import Fit, section_parts
from ampcheck.renderers.terminal_table import STYLES
from ampcheck.renderers.view import tone_of

NARROWEST = 60
_OUTCOMES = {"worse": "red", "better": "green", "changed": "yellow", "same": "green"}


@nothing_drawn
def render(comparison: Comparison, *, width: int = 100, color: bool = False) -> str:
    """Return what became of a report as lines no longer than a width."""
    fit = Fit(max(width, NARROWEST))
    parts = (part for section in sections(comparison) for part in section_parts(section, fit))
    return drawn([*_head(comparison, fit.width), *parts], fit.width, color=color)


def _head(comparison: Comparison, width: int) -> Parts:
    target, *others = facts(comparison)
    tail = "".join(f" · {fact}" for fact in others)
    head = "ampcheck diff "
    yield text((head, "dim"), (fitted(target, width - cells(head + tail)), "bold"), (tail, "dim"))
    yield ""
    word = outcome(comparison)
    badge = text((f" {word.upper()} ", f"bold {_OUTCOMES[word]} reverse"))
    yield hanging(badge, text((summary(comparison), "bold")))
    for when, report in answers(comparison):
        health, sentence = report.verdict.word, report.verdict.sentence
        yield hanging(
            text(f"{when:<6} ", (f"{health.upper():<7}", STYLES[tone_of(health)])), text(sentence), 2
        )
