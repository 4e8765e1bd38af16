"""The findings of the page: what is wrong, where, the numbers that say so, and what the manual says of it."""

from collections.abc import Mapping

from ampcheck.diagnose.rules import RULES
from ampcheck.diagnose.rules.manual import page
from ampcheck.renderers.page.elements import Html, joined, shown, tag
from ampcheck.renderers.words import corrected, figures, tally
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import SHORT_DTYPE
from ampcheck.values.report import Report
from ampcheck.values.trace import Site
from ampcheck.values.wording import ROOT, clean, count, location, plural

_SEVERITY = {Severity.ERROR: "✕", Severity.WARNING: "!", Severity.INFO: "i"}
#: Findings shown at once; the others wait behind a line to open.
_FIRST = 8


def findings(report: Report, rows: Mapping[str, int]) -> Html:
    """Return every finding, most important first; `rows` tells which row of the table shows a module."""
    found = report.findings
    items = [_finding(finding, rows) for finding in found]
    rest = items[_FIRST:]
    return tag(
        "section",
        tag("h2", "Findings ", tag("small", tally(report) or "none"), id="findings-title"),
        tag("ol", items[:_FIRST], class_="findings") if items else None,
        tag("details", tag("summary", f"{count(len(rest))} more"), tag("ol", rest, class_="findings"))
        if rest
        else None,
        _suppressed(report),
        id="findings",
        aria_labelledby="findings-title",
    )


def _suppressed(report: Report) -> Html | None:
    """Return the findings that were kept from counting, and who said so."""
    if not report.suppressed:
        return None
    lines = []
    for one in report.suppressed:
        origin = one.finding.origin
        at = (location(origin.file, origin.line) or clean(origin.module) or ROOT) if origin else ""
        name = f"{one.finding.severity} {clean(one.finding.code)} {clean(one.finding.name)}"
        lines.append(tag("li", " · ".join(part for part in (name, at, clean(one.words)) if part)))
    title = f"{plural(len(lines), 'suppressed finding')}, not counted"
    return tag("details", tag("summary", title), tag("ul", lines, class_="muted suppressed"))


def _finding(finding: Finding, rows: Mapping[str, int]) -> Html:
    origin = finding.origin
    at = location(origin.file, origin.line) if origin else ""
    severity = finding.severity
    return tag(
        "li",
        tag(
            "h3",
            tag(
                "span",
                tag("span", _SEVERITY[severity], class_="sign", aria_hidden="true"),
                str(severity),
                class_=f"badge {severity}",
            ),
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
    origin = finding.origin
    parts = [*([_where(origin, rows)] if origin and origin.dtype else []), *map(shown, figures(finding))]
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


def _where(site: Site, rows: Mapping[str, int]) -> Html:
    """Return a link to the module's row, then the operation and its dtype."""
    name = clean(site.module) or ROOT
    row = rows.get(site.module)
    module = tag("a", name, href=f"#m{row}") if row is not None else shown(name)
    rest = (clean(site.op or site.slot), SHORT_DTYPE.get(site.dtype, clean(site.dtype)))
    return joined([module, *filter(None, rest)], " · ")
