"""Parts of a model whose gradient is far off, and so small beside the others that it may do no harm."""

from ampcheck.values.findings import Finding, Severity
from ampcheck.values.modules import within
from ampcheck.values.outcome import FAINT
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase
from ampcheck.values.wording import clean, percent, plural

#: An error from which on a gradient is little beside rounding: what cancels in FP32, as before a normalisation.
_CANCELS = 3.0
#: Parts of the names of optimizers that divide a gradient by its own size.
_NORMED = ("ada", "prop", "lion", "lamb", "muon", "shampoo", "soap")


def faint_gradient(report: Report) -> list[Finding]:
    """Return what is wrong with such parts: an error where the optimizer moves weights by how steady a gradient is.

    Not where the gradient is nearly zero in FP32, and nothing but rounding in half precision.
    """
    settled = report.outcomes.get("settled")
    if settled is None or not settled.faint or "rounded" not in report.outcomes:
        return []
    things = report.loop.things if report.loop is not None else ()
    kinds = [thing.kind.lower() for thing in things if thing.family == "optimizer"]
    normed = any(name in kind for kind in kinds for name in _NORMED)
    wrong = {name: error for name, error in settled.faint.items() if error < _CANCELS}
    name, error = max((wrong or settled.faint).items(), key=lambda part: part[1])
    others = f" and {plural(len(settled.faint) - 1, 'other part')}" if len(settled.faint) > 1 else ""
    forward = [site for site in report.low.sites if site.op and site.phase is Phase.FORWARD]
    owners = (name, name.rpartition(".")[0])  # a module, or a parameter
    whose = next(filter(None, ([s for s in forward if within(s.module, owner)] for owner in owners)), [])
    return [
        Finding(
            "AMP501",
            "precision-loss",
            "precision-loss",
            Severity.ERROR if normed and wrong else Severity.WARNING,
            f"the gradient is off by {percent(error)} in {clean(name) or 'the root'}{others}, which has less than "
            f"{percent(FAINT)} of the whole gradient: SGD hardly moves it, Adam moves it in a wrong direction",
            tuple(whose[-1:]),
            {"grad_error": settled.grad_error, "error": error},
        )
    ]
