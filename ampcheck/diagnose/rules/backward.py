"""Where a backward loses bits."""

from math import inf

from ampcheck.values.formats import FP32
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site

#: A gradient this far off, and so many times further than all results before it, is where the backward loses bits.
BACKWARD_ERROR = 0.05
BACKWARD_FACTOR = 8.0
#: An error as large as the result itself: what comes later has nothing left to lose.
ALL_LOST = 1.0
#: Operations that add to a sum of many.
_SUMS = frozenset({"add", "add_", "sum"})
#: Share of FP32's result that is rounding of its own from which on it says nothing about another precision.
NOISE = 1 / 16


def lost_in_backward(report: Report) -> tuple[Site, float] | None:
    """Return the operation of the backward whose result is far off, where nothing before it is, and how far.

    Of an operation that runs often only the first calls are compared. Where all of these agree and a parameter's
    gradient does not, it is the sum of many in low precision that has lost them.
    """
    known, noise = 0.0, _noise_error(report)
    for site, pair in report.errors.items():
        error = pair.relative_rms
        if known > ALL_LOST:
            return None
        if not site.op or site.phase not in {Phase.FORWARD, Phase.BACKWARD} or noise < error < inf:
            continue
        if site.phase is Phase.BACKWARD and inf > error > max(BACKWARD_ERROR, BACKWARD_FACTOR * known):
            return _summed_before(report, site), error
        known = max(known, error) if error < inf else known
    return _summed_in_low_precision(report, known)


def _noise_error(report: Report) -> float:
    """Return the error from which on FP32's own result is no more than rounding of FP32.

    Where terms cancel, an error of low precision is that many times larger than the one that FP32 has itself: a bias
    in front of a normalisation has a gradient of zero, and whatever stands there was rounded.
    """
    return NOISE * 2.0 ** (FP32.precision - report.format.precision)


def _summed_in_low_precision(report: Report, known: float) -> tuple[Site, float] | None:
    least, noise = max(BACKWARD_ERROR, BACKWARD_FACTOR * known), _noise_error(report)
    for grad, pair in report.errors.items():
        if not grad.slot.startswith("param_grad") or not least < pair.relative_rms <= noise:
            continue
        for site in report.low.sites:
            sums = site.op == "add" and site.phase is Phase.BACKWARD and site.dtype == report.dtype
            if sums and site.module == grad.module:
                return site, pair.relative_rms
    return None


def _summed_before(report: Report, site: Site) -> Site:
    """Return the last sum in low precision before a cast to FP32, which loses nothing itself."""
    sites = list(report.low.sites)
    if site.op != "_to_copy" or site.dtype == report.dtype or site not in sites:
        return site
    before = [one for one in sites[: sites.index(site)] if one.module == site.module]
    sums = [one for one in before if one.phase is Phase.BACKWARD and one.op in _SUMS]
    return next((one for one in reversed(sums) if one.dtype == report.dtype), site)
