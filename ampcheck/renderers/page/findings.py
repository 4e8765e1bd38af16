"""The findings of the page: what is wrong, where, the numbers that say so, and what the manual says of it."""

from collections.abc import Mapping

from ampcheck.diagnose.rules import RULES
from ampcheck.diagnose.rules.manual import page
from ampcheck.renderers.page.elements import Html, badge, joined, shown, tag
from ampcheck.renderers.words import corrected, figures, operation
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.wording import ROOT, clean, location

_SEVERITY = {Severity.ERROR: "✕", Severity.WARNING: "!", Severity.INFO: "i"}


def finding_item(finding: Finding, rows: Mapping[str, int]) -> Html:
    """Return a finding as an item of a list; `rows` tells which row of the table shows a module."""
    origin = finding.origin
    at = location(origin.file, origin.line) if origin else ""
    severity = finding.severity
    return tag(
        "li",
        tag(
            "h3",
            badge(_SEVERITY[severity], severity, severity),
            " ",
            tag("span", clean(finding.name)),
            " ",
            tag("code", clean(finding.code), class_="muted"),
            tag("code", at, class_="place") if at else None,
        ),
        tag("p", clean(finding.message)),
        tag("ul", [tag("li", clean(follower)) for follower in finding.follows], class_="follows")
        if finding.follows
        else None,
        _details(finding, rows),
        _fix(finding),
        _manual(finding.code),
        class_=str(severity),
    )


def _details(finding: Finding, rows: Mapping[str, int]) -> Html | None:
    """Return the place and the figures; lines of a training loop lie in no module."""
    where = operation(finding)
    module = [_module(finding.origin.module, rows)] if finding.origin and where else []
    parts = [*module, *map(shown, [*where, *figures(finding)])]
    return tag("p", joined(parts, " · "), class_="muted") if parts else None


def _fix(finding: Finding) -> Html | None:
    """Return the lines of code as they should be."""
    if not finding.fix:
        return None
    lines = joined(map(shown, corrected(finding)), Html("\n"))
    return tag("pre", tag("code", lines), class_="fix", tabindex="0", aria_label="Corrected lines")


def _manual(code: str) -> Html | None:
    """Return what the manual says of a rule; None where it has no such rule, as of a newer version's report."""
    if code not in RULES:
        return None
    shown = page(code)
    parts = [tag("p", _coded(shown.summary))]
    parts += [
        tag("p", tag("b", f"{heading}: "), _coded(text))
        for heading, text in shown.sections.items()
        if heading
    ]
    return tag("details", tag("summary", "What it means and what to do"), parts, class_="manual")


def _coded(text: str) -> Html:
    """Return a paragraph of the manual, what stands between backticks as code."""
    pieces = enumerate(text.split("`"))
    return joined(tag("code", piece) if index % 2 else shown(piece) for index, piece in pieces)


def _module(path: str, rows: Mapping[str, int]) -> Html:
    """Return the name of a module, a link to its row where it has one."""
    name, row = clean(path) or ROOT, rows.get(path)
    return tag("a", name, href=f"#m{row}") if row is not None else shown(name)
