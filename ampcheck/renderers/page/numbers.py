"""The numbers that the page's script works with, as compact JSON."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any

from ampcheck.renderers.page.elements import Html
from ampcheck.renderers.page.tree import Node
from ampcheck.values.codec_plain import number
from ampcheck.values.findings import Severity
from ampcheck.values.formats import SHORT_DTYPE
from ampcheck.values.report import Report, by_place, low_tensors
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import ROOT, clean

#: What an HTML parser, or a script's, would take for something else than text.
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
#: Recomputed forwards and parameters are not shown: the first are the forward again, the others no results.
_PHASES = (Phase.FORWARD, Phase.BACKWARD)


def data(report: Report, nodes: Sequence[Node], scales: range) -> Html:
    """Return everything the script computes with, ready to stand inside of a script element.

    A site is a list: module, phase, op, slot, dtype, file, line, relative error, which run its numbers are of,
    and these. Whatever the loss scale has to suit is as the FP32 run has it.
    """
    fmt = report.format
    index = {node.path: node.index for node in nodes}
    texts: dict[str, int] = {}  # each that occurs many times is written once
    content = {
        "format": [
            fmt.underflow_exponent,
            fmt.min_exponent,
            fmt.max_exponent,
            fmt.overflow_from,
            fmt.has_inf,
        ],
        "precision": fmt.name,
        "scale": report.log2_scale,
        "scales": [scales.start, scales.stop - 1],
        "modules": [
            [clean(node.path) or ROOT, clean(node.kind), node.depth, node.end, _values(node)]
            for node in nodes
        ],
        "sites": [
            [
                index[site.module],
                *_named(site, texts),
                _error(report, site),
                int(source),
                *_counted(held, low),
            ]
            for site, source, held, low in _shown(report)
        ],
        "marks": _marks(report, index),
        "texts": [clean(text) for text in texts],
    }
    return Html(json.dumps(content, allow_nan=False, separators=(",", ":")).translate(_ESCAPES))


class Source(IntEnum):
    """Which run a site's numbers are of."""

    LOW = 0  #: the low-precision run: the FP32 run has no such result, as of casts
    REFERENCE = 1
    COUNTED = 2  #: the FP32 run, and the loss scale has to suit them: low precision holds them


def _shown(report: Report) -> Iterator[tuple[Site, Source, TensorStats, TensorStats]]:
    """Yield each result: its site, where its numbers are from, these without a loss scale, and the low run's."""
    results = [site for site in report.low.sites if site.op and site.phase in _PHASES]
    counted = {phase: low_tensors(report, phase) for phase in _PHASES}
    alone = {place for place, number in Counter(site.place for site in results).items() if number == 1}
    reference = by_place(report.reference)
    for site in results:
        low, place = report.low.sites[site], site.place
        # What both precisions hold at one place is counted once, at the first site in low precision.
        mine = counted[site.phase].pop(place, None) if site.dtype == report.dtype else None
        if mine is not None:
            yield site, Source.COUNTED, mine, low
        elif place in alone and place in reference:
            yield site, Source.REFERENCE, reference[place], low
        else:
            scale = report.log2_scale if site.phase is Phase.BACKWARD else 0
            yield site, Source.LOW, replace(low, lowest=low.lowest - scale, amax=low.amax * 2.0**-scale), low


def _marks(report: Report, index: Mapping[str, int]) -> list[list[Any]]:
    """Return where findings start: module, phase and code, without those that are for information only."""
    return [
        [index[finding.origin.module], _PHASES.index(finding.origin.phase), clean(finding.code)]
        for finding in report.findings
        if finding.origin is not None
        and finding.severity is not Severity.INFO
        and finding.origin.phase in _PHASES
        and finding.origin.module in index
    ]


def _values(node: Node) -> list[Any] | None:
    """Return what the table's columns are sorted by; None for a module without operations of its own."""
    row = node.row
    if row is None:
        return None
    shares = [number(share) for share in (row.trouble, row.underflow_forward, row.underflow_backward)]
    error = number(row.error)
    return [*shares, row.overflowed, row.casts, error, row.activations.highest, row.gradients.lowest]


def _named(site: Site, texts: dict[str, int]) -> list[int]:
    words = (site.op, site.slot, SHORT_DTYPE.get(site.dtype, site.dtype), site.file)
    return [_PHASES.index(site.phase), *(texts.setdefault(word, len(texts)) for word in words), site.line]


def _error(report: Report, site: Site) -> float | str | None:
    """Return the relative error of a result; None where no pair of finite numbers was compared."""
    error = report.errors.get(site)
    return number(error.relative_rms) if error is not None and error.sampled > error.nonfinite else None


def _counted(held: TensorStats, low: TensorStats) -> list[Any]:
    here, there = ((stats.zeros, stats.infs, stats.nans) for stats in (held, low))
    return [held.lowest, held.counts, number(held.amax), *here, *there]
