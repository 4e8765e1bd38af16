"""The report as SARIF 2.1.0, for code scanning: results with places, and the rules with their manual."""

import hashlib
import json
import re
from collections import Counter
from typing import Any
from urllib.parse import quote

from ampcheck.diagnose.rules import RULES
from ampcheck.diagnose.rules.manual import Page, page
from ampcheck.renderers.words import consequences, corrected
from ampcheck.saved.report_json import TOOL, tool_version
from ampcheck.values.codec_plain import number
from ampcheck.values.findings import Finding, How, Severity, Suppressed
from ampcheck.values.report import Report
from ampcheck.values.trace import Site
from ampcheck.values.wording import ROOT, clean, place

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
#: Further places of one result; a set of thousands helps nobody.
_RELATED = 20

Sarif = dict[str, Any]


def render(report: Report) -> str:
    """Return the report as a SARIF log of one run."""
    health, sentence = report.verdict.word, report.verdict.sentence
    pages = [page(code) for code in sorted(RULES)]
    unseen = [
        {"level": "note", "message": {"text": _plain(f"not audited, {times} times: {what}")}}
        for what, times in report.not_audited.items()
    ]
    driver = {"name": TOOL, "version": tool_version(), "rules": [_rule(shown) for shown in pages]}
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"{TOOL}/{clean(report.target)}/{report.precision}/"},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": unseen}],
        "results": _results(report, [shown.code for shown in pages]),
        "properties": {"health": str(health), "verdict": sentence, "log2_scale": report.log2_scale},
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=1, allow_nan=False) + "\n"


def _rule(shown: Page) -> Sarif:
    headed = [(heading, " ".join(text.split())) for heading, text in shown.sections.items() if heading]
    first = headed[0][1] if headed else shown.summary
    return {
        "id": shown.code,
        "name": "".join(word.capitalize() for word in shown.name.split("-")),
        "shortDescription": {"text": " ".join(shown.summary.split())},
        "fullDescription": {"text": first},
        "help": {
            "text": "\n\n".join(f"{heading}: {text}" for heading, text in headed) or first,
            "markdown": "\n\n".join(f"**{heading}.** {text}" for heading, text in headed) or first,
        },
        "properties": {"tags": ["mixed-precision", "pytorch"]},
    }


def _results(report: Report, codes: list[str]) -> list[Sarif]:
    """Return a result for each finding; those that look the same are told apart by their order."""
    seen: Counter[str] = Counter()
    results = []
    shown: list[tuple[Finding, Sarif]] = [(finding, {}) for finding in report.findings]
    shown += [(one.finding, {"suppressions": [_suppression(one)]}) for one in report.suppressed]
    for finding, suppressed in shown:
        mark = _fingerprint(finding)
        seen[mark] += 1
        marks = {"partialFingerprints": {f"{TOOL}/v1": f"{mark}:{seen[mark]}"}}
        results.append(_result(finding, codes) | _located(finding, report.target) | marks | suppressed)
    return results


def _suppression(one: Suppressed) -> Sarif:
    """Return who said that a finding does not count: the code itself, or something beside it."""
    return {"kind": "inSource" if one.how is How.COMMENT else "external", "justification": _plain(one.words)}


def _fingerprint(finding: Finding) -> str:
    """Return what stays the same when lines move: the rule and the operation, its module and file."""
    origin = finding.origin
    where = (origin.module, origin.op, origin.slot, str(origin.phase), origin.file) if origin else ()
    shown = json.dumps([finding.code, finding.kind, *where])
    return hashlib.sha256(shown.encode()).hexdigest()[:24]


def _result(finding: Finding, codes: list[str]) -> Sarif:
    numbers = {clean(name): number(float(value)) for name, value in finding.numbers.items()}
    result: Sarif = {
        "ruleId": clean(finding.code),
        "level": _LEVELS[finding.severity],
        "message": {"text": _message(finding)},
        "properties": {"numbers": numbers},
    }
    return result | ({"ruleIndex": codes.index(finding.code)} if finding.code in codes else {})


def _message(finding: Finding) -> str:
    """Return what happened, and below it the lines of code as they should be."""
    shown = _plain(" · ".join([finding.message or finding.name, *consequences(finding)]))
    return "\n".join([shown, *map(_unlinked, corrected(finding))])


def _located(finding: Finding, target: str) -> Sarif:
    """Return the line where a finding starts, and the other lines that it reached."""
    spots = list(dict.fromkeys((site.file, site.line) for site in finding.sites if site.file))
    origin = finding.origin
    first = (origin.file, origin.line) if origin and origin.file else _whole_target(target)
    others = [spot for spot in spots if spot != first]
    related = [
        {"id": index, "physicalLocation": _physical(*spot), "message": {"text": "also reached"}}
        for index, spot in enumerate(others[:_RELATED], 1)
    ]
    location = _logical(origin) if origin else {}
    location |= {"physicalLocation": _physical(*first)} if first else {}
    return {"locations": [location] if location else [], "relatedLocations": related}


def _whole_target(target: str) -> tuple[str, int] | None:
    """Return the audited file for what has no line: code scanning takes no result without a place."""
    file = target.rpartition(".py")[0] + ".py"
    return (file, 1) if target.startswith(file) else None


def _logical(site: Site) -> Sarif:
    """Return the module as a place in the program."""
    path = clean(site.module) or ROOT
    module = {"fullyQualifiedName": path, "name": path.rpartition(".")[2], "kind": "module"}
    return {"logicalLocations": [module], "message": {"text": _plain(place(site))}}


def _plain(text: str) -> str:
    """Return a message without the links that SARIF would make of brackets."""
    return _unlinked(clean(text))


def _unlinked(shown: str) -> str:
    return re.sub(r"[\\\[\]]", r"\\\g<0>", shown) if "](" in shown else shown


def _physical(file: str, line: int) -> Sarif:
    """Return a line of a file: relative ones from the top of the repository, others as they are."""
    name = clean(file).replace("\\", "/")
    if name.startswith("/") or name[1:3] == ":/":
        artifact = {"uri": "file:///" + quote(name.lstrip("/"))}
    else:
        artifact = {"uri": quote(name), "uriBaseId": "%SRCROOT%"}
    return {"artifactLocation": artifact, "region": {"startLine": max(line, 1)}}
