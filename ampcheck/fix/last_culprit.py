"""Which of several places that heal is the cause: the last one before the error shows.

A place in FP32 hands FP32 numbers on, and what follows computes with them: every place before the culprit may
heal too. None behind it can, since bits that are lost stay lost.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ampcheck.diagnose.suspects import Suspect, beginning
from ampcheck.values.modules import within
from ampcheck.values.op_kinds import rounds_inputs
from ampcheck.values.report import Report
from ampcheck.values.trace import ErrorJump, Phase, Site

#: Places tried behind the one that was found, and lines tried inside of it.
MOST_TRIED = 8

Heals = Callable[[tuple[Suspect, ...]], bool]


@dataclass(frozen=True, slots=True)
class Culprit:
    """The cause of an error that rounding makes."""

    place: Suspect  #: to be kept in FP32
    site: Site | None = None  #: the operation whose line alone heals, where that had to be tried


def last_culprit(report: Report, found: Suspect, heals: Heals, *, proved: bool) -> Culprit:
    """Return the place to blame, given one that heals, and which of its lines; `proved` tells that the place is."""
    jump = next((jump for jump in report.error_jumps if jump.dropped.dtype == report.dtype), None)
    if jump is None or not found.module:
        return Culprit(found)
    ran = _until(report, jump)
    start = next((at for at, site in enumerate(ran) if found.holds(site)), len(ran))
    last = _last(_behind(ran[start:], found), heals)
    if last is not None and last.line:
        return Culprit(found, _on(ran[start:], last, ""))
    place = last or found
    dropped = beginning(report, jump)
    held = [site for site in ran if place.holds(site)]
    if dropped in held:
        # The numbers say where the bits were dropped; a re-run has the last word.
        if heals((Suspect(line=dropped.location),)):
            return Culprit(place, None if proved else dropped)
    elif place == found and proved:
        return Culprit(place)
    line = _last((Suspect(line=site.location) for site in reversed(held) if site.location), heals)
    return Culprit(place, None if line is None else _on(held, line, place.module))


def all_but(report: Report, place: Suspect) -> tuple[Suspect, ...]:
    """Return every place that works in low precision outside of one: modules, and the lines of those around it."""
    outside = [site for site in report.low.sites if site.op and site.phase is Phase.FORWARD]
    outside = [site for site in outside if site.dtype == report.dtype and not place.holds(site)]
    around = [site for site in outside if within(place.module, site.module) or not site.module]
    beside = [Suspect(module=site.module) for site in outside if site not in around]
    return tuple(dict.fromkeys([*beside, *(Suspect(line=site.location) for site in around if site.location)]))


def _until(report: Report, jump: ErrorJump) -> list[Site]:
    """Return what ran in low precision up to where the error shows, in order."""
    ran = [site for site in report.low.sites if site.op and site.phase is Phase.FORWARD]
    ran = ran[: ran.index(jump.site) + 1] if jump.site in ran else ran
    return [site for site in ran if site.dtype == report.dtype]


def _behind(ran: list[Site], found: Suspect) -> Iterable[Suspect]:
    """Return the places behind one, the last first: modules, and the lines of modules that hold it."""
    for site in reversed(ran):
        if found.holds(site):
            continue
        if not site.module or within(found.module, site.module):
            if site.location:
                yield Suspect(line=site.location)
        else:
            yield Suspect(module=site.module)


def _last(places: Iterable[Suspect], heals: Heals) -> Suspect | None:
    distinct = list(dict.fromkeys(places))[:MOST_TRIED]
    return next((place for place in distinct if heals((place,))), None)


def _on(ran: list[Site], line: Suspect, module: str) -> Site:
    """Return the operation of a line that loses bits: a product, a cast that the code asks for, or the last."""
    there = [site for site in ran if line.holds(site)]
    own = [site for site in there if site.module == module] or there
    product = next((site for site in own if rounds_inputs(site.op)), None)
    return product or next((site for site in own if site.op == "_to_copy"), own[-1])
