"""The table of the layers: every module with its dtypes, ranges, underflow and casts, as a tree."""

from collections.abc import Sequence

from ampcheck.diagnose.tables import LayerRow
from ampcheck.renderers.drawing import NONE
from ampcheck.renderers.page.elements import Html, badge, tag, titled, wide
from ampcheck.renderers.page.tree import Node
from ampcheck.renderers.sections.tables import layer_cells
from ampcheck.values.findings import Severity
from ampcheck.values.report import Report
from ampcheck.values.wording import ROOT, clean, count, percent, power

#: Deeper levels are not indented any further.
_DEEPEST = 12
#: Columns that the script can sort by, with what it sorts by, the title, and what the title means.
COLUMNS = (
    ("path", "Module", "in order of execution"),
    ("kind", "Class", ""),
    ("state", "Trouble", "overflow first, then the share that underflows"),
    ("dtype", "Dtype", "of the results in the forward"),
    ("activation", "Activations", "powers of two that the magnitudes span"),
    ("gradient", "Gradients", "powers of two that the magnitudes span, without the loss scale"),
    ("forward", "Underflow forward", "non-zero in FP32, zero in low precision"),
    ("backward", "Underflow backward", "non-zero in FP32, zero in low precision"),
    ("over", "Overflow", "elements that are finite in FP32 only"),
    ("casts", "Casts", "calls"),
    ("error", "Error", "worst relative RMS error of a forward result"),
)


def layers(report: Report, nodes: Sequence[Node]) -> Html:
    """Return the section of the table."""
    origins = _origins(report)
    # Whatever overflows without being where a finding starts was handed what had overflowed before.
    known = any(finding.kind.endswith("overflow") for finding in report.findings)
    held = [node.row for node in nodes if node.row]
    troubled = sum(row.troubled for row in held)
    about = f"{count(len(held))}, {count(troubled) if troubled else 'none'} with trouble"
    heads = [_head(*column) for column in COLUMNS]
    rows = [_row(node, origins.get(node.path, ""), passed=known) for node in nodes]
    words = f"Measured at loss scale {power(report.log2_scale)}, against the FP32 run."
    table = tag(
        "table",
        tag("caption", words, class_="muted"),
        tag("thead", tag("tr", heads, role="row"), role="rowgroup"),
        tag("tbody", rows, role="rowgroup"),
        id="layers-table",
        role="table",
    )
    return titled("layers", "Layers", about, _controls(troubled), wide(table, "Table of the layers"))


def _head(key: str, title: str, what: str) -> Html:
    about = {"data_key": key, "title": what or None, "role": "columnheader"}
    return tag("th", tag("span", title, class_="head"), scope="col", class_=f"c-{key}", **about)


def _controls(troubled: int) -> Html:
    return tag(
        "div",
        tag(
            "label",
            tag("span", "Search", class_="unseen"),
            tag(
                "input",
                type="search",
                id="search",
                placeholder="Search modules, classes, operations, files",
                autocomplete="off",
                spellcheck="false",
            ),
        ),
        tag("label", tag("input", type="checkbox", id="only"), f" with trouble only ({count(troubled)})"),
        tag("span", id="matches", class_="muted", role="status"),
        class_="controls scripted",
    )


def _row(node: Node, codes: str, *, passed: bool) -> Html:
    shown = tag("span", clean(node.name) or NONE, class_="name", title=clean(node.path) or ROOT)
    place = f"c-path d{min(node.depth, _DEEPEST)}"
    name = tag("th", shown, scope="row", role="rowheader", class_=place)
    cells = [
        tag("td", text, role="cell", class_=f"c-{key}{style}")
        for key, text, style in _cells(node, codes, passed=passed)
    ]
    style = "holder" if node.row is None else "troubled" if node.row.troubled else None
    return tag("tr", name, cells, id=f"m{node.index}", role="row", class_=style)


def _cells(node: Node, codes: str, *, passed: bool) -> list[tuple[str, str | Html, str]]:
    row = node.row
    kind = ("kind", clean(node.kind), "")
    if row is None:
        inside = f"{count(node.troubled)} with trouble" if node.troubled else ""
        return [kind, ("state", inside, " muted"), *((key, "", "") for key, *_ in COLUMNS[3:])]
    _, _, *texts = layer_cells(row)
    state = ("state", *_state(row, codes, passed=passed))
    keys = (key for key, *_ in COLUMNS[3:])
    return [kind, state, *((key, clean(text) or NONE, "") for key, text in zip(keys, texts, strict=True))]


def _state(row: LayerRow, codes: str, *, passed: bool) -> tuple[str | Html, str]:
    """Return what is wrong with a layer in a word, and how it looks."""
    if codes:
        return badge("✕", codes, "error"), ""
    if row.overflowed and passed:
        return "overflow, passed on", " muted"
    if row.overflowed:
        return "✕ overflow", " bad"
    if row.troubled:
        return f"! underflow {percent(max(row.underflow_forward, row.underflow_backward))}", " warn"
    return NONE, " muted"


def _origins(report: Report) -> dict[str, str]:
    """Return the codes of the findings that start in a module, without those that are for information only."""
    found: dict[str, dict[str, None]] = {}
    for finding in report.findings:
        if finding.origin is not None and finding.severity is not Severity.INFO:
            found.setdefault(finding.origin.module, {})[clean(finding.code)] = None
    return {module: " ".join(codes) for module, codes in found.items()}
