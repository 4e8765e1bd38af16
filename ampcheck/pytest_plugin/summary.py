"""What all audits of a session came to: as properties of a test, which travel, and as the summary made of them."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ampcheck.diagnose.tables import measured_loss
from ampcheck.renderers.assertion_text import shortened
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase
from ampcheck.values.verdict import Health
from ampcheck.values.wording import ELLIPSIS, clean, percent, plural, scale_words

if TYPE_CHECKING:
    import pytest

#: Before each of our properties; the first one of an audit is its target.
PREFIX = "ampcheck."
FIRST = f"{PREFIX}target"
WIDEST = 100
#: Lines for audits without trouble, unless pytest is run with -v.
SHOWN = 10
_ORDER = ["unsafe", "unknown", "partly audited", "risk", "safe"]
_COLORS = dict.fromkeys(_ORDER, "yellow") | {"unsafe": "red", "safe": "green"}

Properties = Sequence[tuple[str, object]]


def properties(report: Report) -> list[tuple[str, object]]:
    """Return an audit as properties of its test: text and numbers, so that they pass to JUnit and between processes."""
    health, sentence = report.verdict.word, report.verdict.sentence
    plan = report.plan
    kept = (*plan.fp32_modules, *plan.fp32_lines) if plan else ()
    found = {
        "target": clean(report.target),
        "precision": report.precision,
        "health": str(health),
        "verdict": sentence,
        "loss_scale": 2.0**report.log2_scale,
        "gradients_underflow": measured_loss(report, Phase.BACKWARD).share,
        "findings": " ".join(clean(finding.code) for finding in report.findings),
        "suppressed": " ".join(clean(held.finding.code) for held in report.suppressed),
        "fp32": ", ".join(map(clean, kept)),
    }
    return [(f"{PREFIX}{name}", value) for name, value in found.items()]


def write(reporter: "pytest.TerminalReporter", tests: Iterable[tuple[str, Properties]]) -> None:
    """Write the section on all audits: those with trouble first, then by test."""
    every = [(test, audit) for test, held in tests for audit in _audits(held)]
    if not every:
        return
    every.sort(key=lambda row: (_ORDER.index(row[1]["health"]), row[0]))
    tally = [(health, sum(audit["health"] == health for _, audit in every)) for health in _ORDER]
    title = ", ".join(
        [plural(len(every), "audit"), *(f"{number} {health}" for health, number in tally if number)]
    )
    reporter.ensure_newline()
    if reporter.verbosity < 0:
        reporter.write_line(f"ampcheck: {title}")
        return
    reporter.section(f"ampcheck: {title}")
    width = min(WIDEST, shutil.get_terminal_size().columns)
    reporter.write_line(
        shortened(f"        in    {'scale':<5} {'underflow':>9}  {'findings (ignored)':<18}  test", width),
        light=True,
    )
    calm = [row for row in every if row[1]["health"] == Health.SAFE]
    shown = every if reporter.verbosity > 0 else every[: len(every) - max(0, len(calm) - SHOWN)]
    for test, audit in shown:
        _row(reporter, test, audit, width)
    if len(shown) < len(every):
        reporter.write_line(f"{ELLIPSIS} and {len(every) - len(shown)} more, all safe (-v shows them)")


def _row(reporter: "pytest.TerminalReporter", test: str, audit: dict[str, str], width: int) -> None:
    health = audit["health"]
    reporter.write(f"{health.upper():<8}", bold=True, **{_COLORS[health]: True})
    scale = scale_words(float(audit["loss_scale"])).replace("2^0", "none")
    lost = percent(float(audit["gradients_underflow"]))
    facts = f"{audit['precision']:<5} {scale:<5} {lost:>9}  {_codes(audit):<18}  "
    reporter.write_line(f"{facts}{_tail(test, width - 8 - len(facts))}")
    if health != Health.SAFE or reporter.verbosity > 0:
        reporter.write_line(f"        {shortened(audit['verdict'], width - 8)}")


def _codes(audit: dict[str, str]) -> str:
    codes = [*audit["findings"].split(), *(f"({code})" for code in audit["suppressed"].split())]
    return " ".join(codes if len(codes) <= 2 else [codes[0], f"+{len(codes) - 1} more"]) or "none"  # noqa: PLR2004


def _tail(text: str, width: int) -> str:
    """Return the end of a test's name: it is what tells it from others."""
    return text if len(text) <= width else ELLIPSIS + text[1 - width :]


def _audits(held: Properties) -> Iterator[dict[str, str]]:
    """Yield the audits among the properties of a test."""
    audit: dict[str, str] = {}
    for name, value in held:
        if name == FIRST and audit:
            yield audit
            audit = {}
        if name == FIRST or (audit and name.startswith(PREFIX)):
            audit[name.removeprefix(PREFIX)] = str(value)
    if audit:
        yield audit
