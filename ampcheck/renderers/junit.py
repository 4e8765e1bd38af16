"""The report as JUnit XML: a test case for the verdict and one for each rule, so that their history is kept."""

from html import escape

from ampcheck.diagnose.rules import RULES, asked
from ampcheck.diagnose.rules.manual import page
from ampcheck.renderers.words import consequences, corrected, facts, figures
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.report import Report
from ampcheck.values.verdict import Health
from ampcheck.values.wording import clean, location, place


def render(report: Report) -> str:
    """Return a test suite: errors fail their rule's case, warnings stand in its output."""
    found: dict[str, list[Finding]] = {code: [] for code in sorted(RULES)}
    for finding in report.findings:
        found.setdefault(finding.code, []).append(finding)
    health, sentence = report.verdict.word, report.verdict.sentence
    group = f"ampcheck.{clean(report.target)}.{report.precision}".replace("/", ".")
    cases = [_verdict(group, health, sentence)]
    missing = {code for code in RULES if not asked(code, report)}
    cases += [_case(group, _title(code, held), held, missing=code in missing) for code, held in found.items()]
    failed = (health is Health.UNSAFE) + sum(any(map(_fails, held)) for held in found.values())
    skipped = (health is Health.UNKNOWN) + len(missing)
    numbers = {"tests": len(cases), "failures": failed, "errors": 0, "skipped": skipped}
    totals = " ".join(f'{name}="{number}"' for name, number in numbers.items())
    suite = f"<testsuite name={_quoted(group)} {totals}>"
    shown = {
        "setting": " · ".join(facts(report)),
        "suppressed": str(len(report.suppressed)),
        **report.environment,
    }
    properties = "".join(
        f"<property name={_quoted(clean(name))} value={_quoted(clean(text))}/>\n"
        for name, text in shown.items()
    )
    body = f"<properties>\n{properties}</properties>\n" + "\n".join(cases)
    head = f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites {totals}>'
    return f"{head}\n{suite}\n{body}\n</testsuite>\n</testsuites>\n"


def _verdict(group: str, health: Health, sentence: str) -> str:
    kind = {Health.UNSAFE: "failure", Health.UNKNOWN: "skipped"}.get(health)
    inside = f"<{kind} message={_quoted(sentence)}/>" if kind else _output(sentence)
    return _element(group, "verdict", inside)


def _title(code: str, found: list[Finding]) -> str:
    name = page(code).name if code in RULES else clean(found[0].name)
    return f"{clean(code)} {name}"


def _fails(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR


def _case(group: str, name: str, found: list[Finding], *, missing: bool) -> str:
    """Return the case of a rule; `missing` says that the report has not what the rule looks at."""
    if missing:
        return _element(group, name, '<skipped message="this rule needs values, and a dry run has none"/>')
    texts = "\n\n".join(_text(finding) for finding in found)
    worst = next(filter(_fails, found), None)
    if worst is not None:
        failure = f"<failure message={_quoted(clean(worst.message))}>{escape(texts)}</failure>"
        return _element(group, name, failure)
    return _element(group, name, _output(texts) if found else "")


def _element(group: str, name: str, inside: str) -> str:
    return f'<testcase classname={_quoted(group)} name={_quoted(name)} time="0">{inside}</testcase>'


def _output(text: str) -> str:
    return f"<system-out>{escape(text)}</system-out>"


def _quoted(text: str) -> str:
    """Return a text as the value of an attribute."""
    return f'"{escape(text)}"'


def _text(finding: Finding) -> str:
    """Return a finding in a few lines."""
    origin = finding.origin
    spots = [place(origin), location(origin.file, origin.line)] if origin else []
    lines = [
        f"{finding.severity}: {clean(finding.message)}",
        " · ".join(filter(None, spots)),
        " · ".join(figures(finding)),
        *consequences(finding),
        *corrected(finding),
    ]
    return "\n".join(filter(None, lines))
