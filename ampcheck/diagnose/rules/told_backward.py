"""What is said of where a backward loses bits."""

from ampcheck.diagnose.rules.backward import lowered_again
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import percent


def told_backward(report: Report, site: Site, error: float) -> str:
    """Return what to say of an operation that loses the bits, and of how far off it is."""
    if site.phase is Phase.FORWARD:
        rounds = f"because a cast ({site.location}) rounds away bits that it needs"
        return f"what the backward computes with is off by {percent(error)}, {rounds}"
    if site == lowered_again(report):
        again = f"the backward computes {site.location} again in {site.dtype}, which the forward has in FP32"
        return f"{again}: what comes of it is off by {percent(error)}"
    at = f" of {site.location}" if site.location else ""  # the line of the forward
    where = in_words(site)
    return f"the bits are lost in the backward{at}: {where} is off by {percent(error)}"


def in_words(site: Site) -> str:
    """Return an operation and its module in words."""
    return f"{site.op} in {site.module or 'the root or the loss'}"
