"""What can be wrong with a step in low precision: one documented function a rule.

A rule takes a report without findings and returns its findings; its docstring is the manual. To add a rule,
write the function and put it into RULES.
"""

from collections.abc import Callable

from ampcheck.findings import Finding
from ampcheck.report import Report
from ampcheck.rules.dtypes import step_raises
from ampcheck.rules.gradients import gradient_overflow, gradient_underflow
from ampcheck.rules.range import forward_overflow

Rule = Callable[[Report], list[Finding]]

RULES: dict[str, Rule] = {
    "AMP101": forward_overflow,
    "AMP201": gradient_underflow,
    "AMP202": gradient_overflow,
    "AMP301": step_raises,
}


def diagnose(report: Report) -> tuple[Finding, ...]:
    """Return the findings of all rules, the worst first, in the order of the rules within a severity."""
    found = [finding for rule in RULES.values() for finding in rule(report)]
    return tuple(sorted(found, key=lambda finding: finding.severity.rank))
