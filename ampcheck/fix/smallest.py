"""The set of places that costs least: what is inside of a place instead of it, one place instead of many."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from ampcheck.diagnose.suspects import Suspect
from ampcheck.fix.search import Found, Search
from ampcheck.values.modules import above, within
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase

#: Places up to which each one is worth a run of its own.
FEW_PLACES = 4
#: Places up to which what is inside of them is tried instead.
MOST_NARROWED = 24
#: Times what several places cost up to which the module that holds them may stand for them.
MERGED = 1.25


def narrowed(
    found: Found[Suspect],
    candidates: Sequence[Suspect],
    search: Search[Suspect],
    cost: Callable[[Suspect], int],
) -> Found[Suspect]:
    """Return several places with what suffices inside of each in its place: a layer, and not the block around it."""
    items = list(found.items)
    if not found.heals or not 1 < len(items) <= MOST_NARROWED:
        return found
    for item in sorted(items, key=cost, reverse=True):
        inside = [other for other in candidates if other != item and within(other.module, item.module)]
        others = [other for other in items if other != item]
        for smaller in sorted(inside, key=cost):
            if cost(smaller) < cost(item) and search.tries((*others, smaller)):
                items = [*others, smaller]
                break
    ordered = tuple(item for item in candidates if item in items)
    return replace(found, items=ordered)


def gathered(
    report: Report, found: Found[Suspect], heals: Callable[[tuple[Suspect, ...]], bool]
) -> Found[Suspect]:
    """Return the set with one module in the place of several that it holds, where that costs no more."""
    items = found.items
    # A long set is no culprit, and the module that holds all of it would only look like one.
    for parent in _parents(items) if found.heals and len(items) <= FEW_PLACES else ():
        merged = (Suspect(module=parent), *(item for item in items if not within(item.module, parent)))
        price, before = (sum(cost(report, item) for item in held) for held in (merged, items))
        if len(merged) < len(items) and price <= MERGED * before:
            items = merged if heals(merged) else items
    return replace(found, items=items)


def cost(report: Report, item: Suspect) -> int:
    """Return what a place costs in FP32: the elements it computes in the forward, and those of its parameters."""
    ran = [(site, stats) for site, stats in report.reference.sites.items() if item.holds(site)]
    computed = sum(stats.numel for site, stats in ran if site.op and site.phase is Phase.FORWARD)
    held = sum(stats.numel for site, stats in ran if site.slot.startswith("param["))
    return computed + held


def _parents(items: tuple[Suspect, ...]) -> list[str]:
    """Return the modules but the root that hold more than one of these, those that hold most first."""
    held = Counter(name for item in items for name in above(item.module))
    return [name for name, count in held.most_common() if count > 1]


def smaller_part(report: Report, items: tuple[Suspect, ...]) -> bool:
    """Tell whether places hold at most half of the modules that work in low precision."""
    working = {site.module: site for site in report.low.sites if site.op and site.dtype == report.dtype}
    return 2 * sum(any(item.holds(site) for item in items) for site in working.values()) <= len(working)
