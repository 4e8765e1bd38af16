"""Verdicts as JSON, and back."""

from dataclasses import asdict
from operator import index

from ampcheck.saved.fields import Json
from ampcheck.values.verdict import Coverage, Health, Verdict


def verdict_json(verdict: Verdict) -> Json:
    """Return a verdict as an object."""
    coverage = verdict.coverage
    return {
        "word": str(verdict.word),
        "sentence": verdict.sentence,
        "reasons": list(verdict.reasons),
        "coverage": asdict(coverage) | {"unseen": dict(coverage.unseen), "gaps": list(coverage.gaps)},
    }


def read_verdict(item: Json) -> Verdict:
    """Return the verdict that `verdict_json` wrote."""
    coverage = item["coverage"]
    texts: Json = {name: str(coverage[name]) for name in ("raised", "asked", "asked_by")}
    unseen = {str(name): index(size) for name, size in coverage["unseen"].items()}
    gaps = tuple(map(str, coverage["gaps"]))
    numbers: Json = {
        name: index(coverage[name])
        for name in Coverage.__dataclass_fields__
        if name not in {*texts, "unseen", "gaps", "stood_in"}
    }
    return Verdict(
        Health(item["word"]),
        str(item["sentence"]),
        tuple(map(str, item["reasons"])),
        Coverage(
            **numbers, **texts, unseen=unseen, gaps=gaps, stood_in=bool(coverage.get("stood_in", False))
        ),
    )
