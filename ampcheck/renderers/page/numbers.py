"""The numbers that the page's script works with, as compact JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ampcheck.findings import Severity
from ampcheck.flat import number
from ampcheck.formats import SHORT_DTYPE
from ampcheck.renderers.page.elements import Html
from ampcheck.renderers.page.tree import Node
from ampcheck.report import Report, low_tensors
from ampcheck.stats import TensorStats
from ampcheck.trace import Phase, Site
from ampcheck.wording import ROOT, clean

#: What an HTML parser, or a script's, would take for something else than text.
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
#: Recomputed forwards and parameters are not shown: the first are the forward again, the others no results.
_PHASES = (Phase.FORWARD, Phase.BACKWARD)


def data(report: Report, nodes: Sequence[Node], scales: range) -> Html:
    """Return everything the script computes with, ready to stand inside of a script element.

    A site is a list: module, phase, op, slot, dtype, file, line, relative error, then what was counted.
    Whatever counts for the loss scale is counted in the FP32 run, the rest as it was in low precision, both
    without a loss scale.
    """
    texts = _Texts()
    fmt = report.format
    counted = {phase: low_tensors(report, phase) for phase in _PHASES}
    index = {node.path: node.index for node in nodes}
    sites = []
    for site, low in report.low.sites.items():
        if site.op and site.phase in counted:
            sites.append(_site(report, site, low, counted[site.phase], index, texts))
    content = {
        "format": [fmt.flush_exponent, fmt.min_exponent, fmt.max_exponent, fmt.overflow_from, fmt.has_inf],
        "precision": fmt.name,
        "scale": report.log2_scale,
        "scales": [scales.start, scales.stop - 1],
        "modules": [
            [clean(node.path) or ROOT, clean(node.kind), node.depth, node.end, _values(node)]
            for node in nodes
        ],
        "sites": sites,
        "marks": _marks(report, index),
        "texts": list(texts.places),
    }
    return Html(json.dumps(content, allow_nan=False, separators=(",", ":")).translate(_ESCAPES))


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
    shares = [number(share) for share in (row.trouble, row.flushed_forward, row.flushed_backward)]
    error = number(row.error)
    return [*shares, row.overflowed, row.casts, error, row.activations.highest, row.gradients.lowest]


class _Texts:
    """Texts that occur many times, each written once."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self.places.setdefault(clean(text), len(self.places))


def _site(
    report: Report,
    site: Site,
    low: TensorStats,
    counted: dict[Site, TensorStats],
    index: Mapping[str, int],
    texts: _Texts,
) -> list[Any]:
    # What has no dtype of its own is counted once, at the first site that holds it in low precision.
    reference = counted.pop(site.place, None) if site.dtype == report.dtype else None
    shift = report.log2_scale if reference is None and site.phase is Phase.BACKWARD else 0
    held = low if reference is None else reference
    error = report.errors.get(site)
    return [
        index[site.module],
        _PHASES.index(site.phase),
        texts.place(site.op),
        texts.place(site.slot),
        texts.place(SHORT_DTYPE.get(site.dtype, site.dtype)),
        texts.place(site.file),
        site.line,
        number(error.relative_rms) if error is not None else None,
        int(reference is not None),
        held.lowest - shift,
        held.counts,
        held.amax * 2.0**-shift,
        held.zeros,
        low.zeros,
        low.infs,
        low.nans,
    ]
