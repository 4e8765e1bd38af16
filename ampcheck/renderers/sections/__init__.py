"""What a report says, section by section: the words and their order are the same in every format."""

from collections.abc import Callable, Iterator

from ampcheck.renderers.sections.findings import findings, suppressed
from ampcheck.renderers.sections.loop import loop
from ampcheck.renderers.sections.plan import plan
from ampcheck.renderers.sections.recipes import operands, recipes
from ampcheck.renderers.sections.rest import environment, not_audited, notes
from ampcheck.renderers.sections.tables import activations, casts, dtypes, gradients, layers, outputs, scales
from ampcheck.renderers.view import Section
from ampcheck.values.report import Report

Made = Callable[[Report], Section | None]

#: What was found and what to do about it; the pictures and the layers; everything else.
ANSWER: tuple[Made, ...] = (findings, suppressed, plan, recipes, operands, loop)
PICTURES: tuple[Made, ...] = (gradients, activations, scales)
LAYERS: tuple[Made, ...] = (layers,)
REST: tuple[Made, ...] = (outputs, dtypes, casts, not_audited, notes, environment)


def sections(report: Report, *made: tuple[Made, ...]) -> Iterator[Section]:
    """Yield the sections of a report that have something to say."""
    for group in made or (ANSWER, PICTURES, LAYERS, REST):
        yield from (section for make in group if (section := make(report)) is not None)
