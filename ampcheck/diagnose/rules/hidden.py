"""Lines that make finite numbers of gradients that have overflowed, so that no scaler hears of it."""

from dataclasses import replace

from ampcheck.diagnose.rules.loop_state import active_scalers
from ampcheck.values.doubts import Doubt, DoubtKind
from ampcheck.values.findings import Finding
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site


def _hides(report: Report) -> Doubt | None:
    return next((one for one in report.doubts if one.kind is DoubtKind.HIDDEN), None)


def hidden_by(report: Report) -> str:
    """Return what hides an overflow, in words."""
    hides = _hides(report)
    return "a later operation" if hides is None else hides.location


def at_what_hides(report: Report, found: Finding) -> Finding:
    """Return a finding at the line that hides an overflow, where a scaler would make up for that."""
    hides = _hides(report)
    if hides is None or report.loop is None or not active_scalers(report.loop):
        return found
    first = Site("", "", "output", Phase.BACKWARD, "float32", hides.file, hides.line)
    leave = f"# {hides.location}: leave inf and NaN as they are: the scaler then skips the step and halves its scale"
    return replace(found, sites=(first, *found.sites), fix=(leave,))
