"""Findings as GitHub annotations: workflow commands that mark lines of a pull request."""

from collections.abc import Iterator
from itertools import islice

from ampcheck.diagnose.rules import RULES
from ampcheck.diagnose.rules.manual import page
from ampcheck.renderers.words import consequences, corrected, figures
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.report import Report
from ampcheck.values.verdict import Health
from ampcheck.values.wording import clean, place, plural

#: What GitHub shows of each kind for one step; further ones are dropped without a word.
LIMIT = 10
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_HEALTH = dict.fromkeys(Health, "warning") | {Health.SAFE: "notice", Health.UNSAFE: "error"}


def render(report: Report) -> str:
    """Return the verdict and the worst findings, as many as GitHub shows; the rest is counted."""
    health, sentence = report.verdict.word, report.verdict.sentence
    room = dict.fromkeys(_COMMANDS.values(), LIMIT) | {_HEALTH[health]: LIMIT - 1}
    lines: list[str] = []
    for severity, command in _COMMANDS.items():
        found = (finding for finding in report.findings if finding.severity is severity)
        lines += [_annotation(command, finding) for finding in islice(found, room[command])]
    left = len(report.findings) - len(lines)
    more = f"; {plural(left, 'more finding')} not annotated" if left else ""
    title = f"ampcheck {clean(report.target)}: {health!s}"
    return "\n".join([_command(_HEALTH[health], {"title": title}, sentence + more), *lines]) + "\n"


def _annotation(command: str, finding: Finding) -> str:
    origin = finding.origin
    properties = {"title": f"{clean(finding.code)} {clean(finding.name)}"}
    if origin and origin.file:
        properties = {"file": clean(origin.file), "line": str(max(origin.line, 1)), **properties}
    return _command(command, properties, "\n".join(_message(finding)))


def _message(finding: Finding) -> Iterator[str]:
    yield clean(finding.message)
    shown = [*([place(finding.origin)] if finding.origin else []), *figures(finding)]
    if shown:
        yield " · ".join(shown)
    yield from consequences(finding)
    if finding.code in RULES:
        yield f"What to do: {clean(page(finding.code).sections['What to do'])}"
    yield from corrected(finding)


def _command(command: str, properties: dict[str, str], message: str) -> str:
    r"""Return a workflow command, in which nothing that it says can end it or begin another.

    >>> _command("error", {"file": "a,b.py", "title": "50%: no"}, "one\n::error::two")
    '::error file=a%2Cb.py,title=50%25%3A no::one%0A::error::two'
    """
    shown = ",".join(
        f"{name}={_escaped(text, {':': '%3A', ',': '%2C'})}" for name, text in properties.items()
    )
    return f"::{command} {shown}::{_escaped(message, {})}"


def _escaped(text: str, further: dict[str, str]) -> str:
    table = {"%": "%25", "\r": "%0D", "\n": "%0A"} | further
    return "".join(table.get(char, char) for char in text)
