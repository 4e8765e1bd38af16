"""What became of a report, as Markdown and as JSON."""

import json
from dataclasses import astuple
from math import isfinite

from ampcheck.compare.baseline import Span
from ampcheck.compare.comparison import Comparison, Shift
from ampcheck.renderers.markdown import laid_out
from ampcheck.renderers.markup import bullets, inline
from ampcheck.renderers.sections.comparison import answers, facts, outcome, sections, summary
from ampcheck.values.report import Report

#: Of the next schema when a reader of this one would go wrong.
SCHEMA = 1
LAYERS = 40


def markdown(comparison: Comparison) -> str:
    """Return what became of a report as Markdown."""
    lines = [
        f"{when}: **{report.verdict.word.upper()}** {inline(report.verdict.sentence)}"
        for when, report in answers(comparison)
    ]
    parts = [
        f"## ampcheck diff: {inline(' · '.join(facts(comparison)))}",
        f"**{outcome(comparison).capitalize()}:** {inline(summary(comparison))}",
        bullets(lines),
    ]
    for section in sections(comparison):
        parts.append(f"### {section.title}" + (f": {inline(section.about)}" if section.about else ""))
        parts += [part for block in section.blocks for part in laid_out(block, LAYERS)]
    return "\n\n".join(parts) + "\n"


def to_json(comparison: Comparison) -> str:
    """Return what became of a report as JSON.

    schema, tool, worse; old and new {target, precision, log2_scale, health, answer}; differences
    [{kind, change, what, before, after, code, module, op, octaves}]; layers
    [{module, octaves, forward, backward: {before, after: [low, typical, top], typical, top}}].
    """
    data = {
        "schema": SCHEMA,
        "tool": "ampcheck diff",
        "worse": comparison.worse,
        "old": _side(comparison.old),
        "new": _side(comparison.new),
        "differences": [
            {
                **{name: str(getattr(one, name)) for name in ("kind", "change", "what", "before", "after")},
                **dict(zip(("code", "module", "op"), one.key, strict=True)),
                "octaves": one.octaves if isfinite(one.octaves) else None,
            }
            for one in comparison.differences
        ],
        "layers": [
            {
                "module": move.module,
                "octaves": _rounded(move.octaves),
                "forward": _shift(move.forward),
                "backward": _shift(move.backward),
            }
            for move in comparison.moves
        ],
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _side(report: Report) -> dict[str, object]:
    health, answer = report.verdict.word, report.verdict.sentence
    about = {name: getattr(report, name) for name in ("target", "precision", "log2_scale")}
    return {**about, "health": str(health), "answer": answer}


def _shift(shift: Shift) -> dict[str, object]:
    ends = {"before": _ends(shift.before), "after": _ends(shift.after)}
    return {**ends, "typical": _rounded(shift.typical), "top": _rounded(shift.top)}


def _rounded(octaves: float) -> float | None:
    """Return a distance as JSON can hold it."""
    return round(octaves, 2) if isfinite(octaves) else None


def _ends(span: Span | None) -> tuple[float | None, ...] | None:
    return None if span is None else tuple(end if isfinite(end) else None for end in astuple(span))
