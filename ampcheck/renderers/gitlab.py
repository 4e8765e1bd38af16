"""The findings as GitLab's code quality report, which a merge request shows beside the lines that it changes."""

import hashlib
import json
from typing import Any

from ampcheck.renderers.words import consequences, corrected, figures
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.report import Report
from ampcheck.values.wording import clean

_SEVERITIES = {Severity.ERROR: "critical", Severity.WARNING: "major", Severity.INFO: "info"}


def render(report: Report) -> str:
    """Return the findings as a JSON list; GitLab knows one again by its fingerprint."""
    return json.dumps([_entry(report, finding) for finding in report.findings], indent=1) + "\n"


def _entry(report: Report, finding: Finding) -> dict[str, Any]:
    origin = finding.origin
    # What has no line of the user's is shown at the first line of what was audited.
    path = clean(origin.file) if origin and origin.file else clean(report.target).partition(":")[0]
    line = origin.line if origin and origin.file else 1
    return {
        "description": f"{clean(finding.code)} {clean(finding.name)}: {clean(finding.message)}",
        "content": {
            "body": "\n".join([", ".join(figures(finding)), *consequences(finding), *corrected(finding)])
        },
        "check_name": f"ampcheck/{clean(finding.code)}",
        "fingerprint": _fingerprint(report, finding, path),
        "severity": _SEVERITIES[finding.severity],
        "location": {"path": path.removeprefix("./"), "lines": {"begin": max(1, line)}},
    }


def _fingerprint(report: Report, finding: Finding, path: str) -> str:
    """Return what stays the same when lines move: the rule, the file, the module and the operation."""
    origin = finding.origin
    place = (origin.module, origin.op, origin.slot) if origin else ()
    parts = (finding.code, path, report.precision, *place)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:40]
