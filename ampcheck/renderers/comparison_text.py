"""What became of a report, as Markdown and as JSON."""

import json
from dataclasses import astuple
from math import isfinite

from ampcheck.compare.baseline import Span
from ampcheck.compare.comparison import Comparison, Shift
from ampcheck.renderers.comparison import facts, outcome, pair, signed, summary
from ampcheck.renderers.differences import sentence
from ampcheck.renderers.markup import bullets, code, inline, prose, table
from ampcheck.values.report import Report
from ampcheck.values.wording import ROOT, plural

#: Of the next schema when a reader of this one would go wrong.
SCHEMA = 1
LAYERS = 40


def markdown(comparison: Comparison) -> str:
    """Return what became of a report as Markdown."""
    answers = [
        f"{when}: **{report.verdict.word.upper()}** {inline(report.verdict.sentence)}"
        for when, report in (("before", comparison.old), ("now", comparison.new))
    ]
    parts = [
        f"## ampcheck diff: {inline(' · '.join(facts(comparison)))}",
        f"**{outcome(comparison).capitalize()}:** {inline(summary(comparison))}",
        bullets(answers),
    ]
    if comparison.differences:
        parts.append(bullets(f"{one.change}: {prose(sentence(one))}" for one in comparison.differences))
    if comparison.moves:
        rows = [
            (code(move.module or ROOT), *_cells(move.forward), *_cells(move.backward))
            for move in comparison.moves[:LAYERS]
        ]
        titles = ("layer", "forward, 2^…", "moved", "top", "gradients, 2^…", "moved", "top")
        parts.append(table(titles, rows))
    rest = len(comparison.moves) - LAYERS
    parts += [f"… and {plural(rest, 'more layer')}"] if rest > 0 else []
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _cells(shift: Shift) -> tuple[str, str, str]:
    shown = " ".join(pair(shift).split())
    return shown, signed(shift.typical), signed(shift.top)


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
                "kind": str(one.kind),
                "change": str(one.change),
                "what": one.what,
                "before": one.before,
                "after": one.after,
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
