"""Which results an operation's inputs came from, so that an error can be followed to where it begins."""

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import takewhile
from math import inf
from typing import Any

import torch

from ampcheck.observe.statistics.memory import tensors_of
from ampcheck.values.formats import BY_DTYPE, FP32, HALVES
from ampcheck.values.op_kinds import CASTS, LIMITS, rounds_inputs
from ampcheck.values.trace import (
    LEAP_ERROR,
    LEAP_FACTOR,
    ErrorJump,
    PairError,
    Phase,
    Site,
    Trace,
)

#: ErrorJumps kept; the first in order of execution are the ones that later ones follow from.
MOST_LEAPS = 16

#: Operations that put numbers elsewhere without rounding them.
MOVES = frozenset(
    """cat stack clone contiguous index index_select gather select_scatter slice_scatter masked_fill where roll flip
    repeat constant_pad_nd split unsafe_split neg relu""".split()
)

#: Operations that round what they are given once more, and leave it as it is but for its size.
_SCALES = frozenset("mul div".split())

#: Operations that may add to their own result again and again.
_SUMS = frozenset({"add", "add_"})
#: Operations whose small results are what is left of two large ones.
_DIFFERENCES = frozenset({"sub", "rsub"})

#: Operations by which a number moves a point.
_MOVED_BY = frozenset({"add", "sub"})

#: An error this large, of numbers that were right, is made by a limit itself: it magnifies none.
_CUT_OFF = 0.5

#: What makes the gradient that a backward begins with.
_ROOT = "ones_like"

#: What each site's results were made of, in order of execution.
Sources = Mapping[Site, Iterable[Site]]

_NOTHING: frozenset[int] = frozenset()


class Lineage:
    """Remembers, by number of site, what each result was made of. No tensor is kept alive."""

    def __init__(self) -> None:
        self.sources: dict[int, set[int]] = {}
        self._makers: dict[int, tuple[weakref.ref[torch.Tensor], frozenset[int]]] = {}
        self._read = _NOTHING

    def clear(self) -> None:
        """Forget the tensors, keep what is known of sites."""
        self._makers = {}

    def read(self, args: Iterable[Any]) -> None:
        """Note what the next results are made of."""
        found = [self._makers_of(tensor) for tensor in tensors_of(args)]
        self._read = frozenset().union(*found) if found else _NOTHING

    def made(self, tensor: torch.Tensor, number: int) -> None:
        """Note that a tensor is a result of the site with this number."""
        self.sources.setdefault(number, set()).update(self._read)
        self._note(tensor, frozenset({number}))

    def passed(self, out: Any) -> None:
        """Note that a view is made of what its base is made of, or a copy of what was copied."""
        for tensor in tensors_of((out,)):
            self._note(tensor, self._read)

    def _note(self, tensor: torch.Tensor, numbers: frozenset[int]) -> None:
        """Note what a tensor is made of; what was written into a view is in its base, too."""
        self._makers[id(tensor)] = (weakref.ref(tensor), numbers)
        base = tensor._base
        if base is not None:
            self._makers[id(base)] = (weakref.ref(base), self._makers_of(base) | numbers)

    def _makers_of(self, tensor: torch.Tensor) -> frozenset[int]:
        hit = self._makers.get(id(tensor))
        return hit[1] if hit is not None and hit[0]() is tensor else _NOTHING

    def left(self) -> Callable[[], list[tuple[torch.Tensor, int]]]:
        """Return what tells, once nothing is recorded any more, which tensors are still there, and a site for each."""
        makers = self._makers  # other threads may add to them until then

        def tell() -> list[tuple[torch.Tensor, int]]:
            held = [(made(), min(numbers, default=-1)) for made, numbers in makers.values()]
            return [(tensor, number) for tensor, number in held if tensor is not None and number >= 0]

        return tell


def rounded_at(site: Site | None, sources: Sources) -> Site | None:
    """Return the last operation in half precision that results of a site are made of; itself where there is none."""
    waiting, seen = [] if site is None else [site], {site}
    for one in waiting:  # which grows
        if one.dtype in HALVES:
            return one
        fresh = [source for source in sources.get(one, ()) if source not in seen]
        seen.update(fresh)
        waiting += fresh
    return site


def error_jumps(
    sources: Sources,
    errors: Mapping[Site, PairError],
    dtype: str,
    outside: Mapping[tuple[str, int], Site | None] | None = None,
) -> tuple[ErrorJump, ...]:
    """Return where the forward's error jumps up, in order of execution, and where the bits were dropped.

    That may have been outside of the step: by the lines that read it, what has made numbers there.
    """
    found: list[ErrorJump] = []
    level = _read_ahead(sources, errors)
    begun: dict[Site, float] = {}  #: how far off a line was before it, by what it has made
    for site, made_of in sources.items():
        before = max((level.get(source, 0.0) for source in made_of), default=0.0)
        if site.op in _SCALES:  # of a difference in the same line
            same = {one for one in made_of if one in begun and one.location == site.location}
            before = max((begun[one] if one in same else level.get(one, 0.0) for one in made_of), default=0.0)
        # A cast has no counterpart in the FP32 run: what it holds is as far off as what it was made of.
        level[site] = errors[site].relative_rms if site in errors else before
        leapt = level[site] > max(LEAP_ERROR, LEAP_FACTOR * before) and not _arbitrary(level[site], dtype)
        if not leapt:
            begun[site] = before
        of_scaler = site.op.startswith("_amp_")
        if leapt and not of_scaler and (site.phase is Phase.FORWARD or _only_saved(site, sources)):
            exact = {one for one, pair in errors.items() if pair.is_exact}
            made_before = outside or {} if site.phase is Phase.FORWARD else {}
            dropped = _unscaled(_dropped(site, sources, dtype, made_before, exact), sources, level)
            # FP32 has no limits of half precision: what they cut off was there before them.
            finite = not any(errors[one].nonfinite for one in made_of if one in errors)
            dropped = site if site.op in LIMITS and level[site] > _CUT_OFF and finite else dropped
            # A sum in half precision loses what is added to it by itself.
            dropped = site if site.op in _SUMS and site.dtype == dtype and site in made_of else dropped
            inside = site.phase is Phase.FORWARD and not made_before.get((site.file, site.line))
            if site.op in _SCALES and inside:  # which magnifies nothing
                dropped = _gradient_read(site, sources, dtype, level) or dropped
            if site.op in _DIFFERENCES and site.phase is Phase.FORWARD and dropped.phase is Phase.BACKWARD:
                dropped = _last_forward(site, sources, dtype) or dropped
            dropped = (site.phase is Phase.BACKWARD and _point(site, sources, dtype)) or dropped
            saved = dropped.op in CASTS if dropped.phase is Phase.FORWARD else _only_saved(dropped, sources)
            if site.phase is Phase.FORWARD or saved:
                found.append(ErrorJump(site, before, level[site], dropped))
    return tuple(found[:MOST_LEAPS])


def _read_ahead(sources: Sources, errors: Mapping[Site, PairError]) -> dict[Site, float]:
    """Return how far off results are that a site before them reads: of several by one line, the first has its place.

    Those that a loop carries are left out: they are made of what reads them.
    """
    place = {site: at for at, site in enumerate(sources)}
    ahead = {
        (one, site)
        for site, made_of in sources.items()
        for one in made_of
        if place.get(one, -1) > place[site]
    }
    return {
        one: errors[one].relative_rms
        for one, site in ahead
        if one in errors and site not in _all_behind(one, sources)
    }


def _all_behind(site: Site, sources: Sources) -> set[Site]:
    """Return all that results of a site are made of."""
    waiting, seen = [site], {site}
    for one in waiting:  # which grows
        fresh = [source for source in sources.get(one, ()) if source not in seen]
        seen.update(fresh)
        waiting += fresh
    return seen - {site}


def _last_forward(site: Site, sources: Sources, dtype: str) -> Site | None:
    """Return the last result of a forward in low precision before a difference of gradients.

    A line that takes gradients more than once is one place: nobody knows which of them were low.
    """
    before = takewhile(lambda one: one != site, sources)
    forward = (one for one in before if one.phase is Phase.FORWARD and one.dtype == dtype)
    return next(iter([one for one in forward if one.op and one.op not in CASTS | MOVES][-1:]), None)


def _gradient_read(site: Site, sources: Sources, dtype: str, level: Mapping[Site, float]) -> Site | None:
    """Return the cast of a backward whose result a product of the forward reads, where that was as far off.

    Nobody knows what a gradient was made of that the script reads as an attribute.
    """
    if site not in level or any(2 * level.get(one, 0.0) > level[site] for one in sources[site]):
        return None
    before = takewhile(lambda one: one != site, sources)
    casts = (one for one in before if one.phase is Phase.BACKWARD and one.dtype == dtype and one.op in CASTS)
    return next(iter([one for one in casts if 2 * level.get(one, 0.0) > level[site]][-1:]), None)


def _only_saved(site: Site, sources: Sources) -> bool:
    """Tell whether a result of the backward is made of nothing but what the forward has saved, and of no gradient."""
    waiting, seen = [site], {site}
    while waiting:
        one = waiting.pop()
        made_of = list(sources.get(one, ()))
        if one.phase is Phase.BACKWARD and (not made_of or any(source.op == _ROOT for source in made_of)):
            return False
        waiting += [source for source in made_of if source.phase is Phase.BACKWARD and source not in seen]
        seen.update(made_of)
    return True


def overflown_casts(sources: Sources, low: Trace, reference: Trace, dtype: str) -> tuple[ErrorJump, ...]:
    """Return where infinities come from a cast that the code asks for, of numbers that FP32 holds.

    FP32 has no such cast to compare with: its infinities are new where the cast's own sources have none and an
    operation on them is finite in FP32.
    """
    known = {site.place: stats.nonfinite for site, stats in reference.sites.items()}
    bad = {site: stats.nonfinite for site, stats in low.sites.items() if stats.nonfinite}
    return tuple(
        ErrorJump(site, 0.0, inf, cast)
        for site, made_of in sources.items()
        if site.phase is Phase.FORWARD and bad.get(site, 0) > known.get(site.place, inf)
        for cast in (_first_of(made, sources, bad) for made in made_of)
        if cast.dtype == dtype and cast in bad and cast.place not in known and not _product(site, cast)
    )[:MOST_LEAPS]


def _first_of(site: Site, sources: Sources, bad: Collection[Site]) -> Site:
    """Return where the infinities of a result begin: a number that is cast down may be cast up again."""
    seen = {site}
    while above := [one for one in sources.get(site, ()) if one in bad and one not in seen]:
        site = above[0]
        seen.add(site)
    return site


def _product(site: Site, cast: Site) -> bool:
    """Tell whether a cast is autocast's own, of an input of a product."""
    same = (site.module, site.location) == (cast.module, cast.location)
    return same and rounds_inputs(site.op)


def _arbitrary(error: float, dtype: str) -> bool:
    """Tell whether FP32 has no bits left there either: both hold noise, as after normalising a constant.

    An error that rounding magnifies shrinks with the format's epsilon; what is left of it in FP32 says how far
    off FP32 is itself. A result that is exactly zero there is no noise.
    """
    own = error * FP32.epsilon / BY_DTYPE[dtype].epsilon
    return LEAP_ERROR < own < inf


def _unscaled(site: Site, sources: Sources, level: Mapping[Site, float]) -> Site:
    """Return what a result was multiplied or divided from, where that was as far off: its bits were gone before."""
    seen = {site}
    while site.op in _SCALES:
        above = [
            one for one in sources.get(site, ()) if one.dtype == site.dtype and one.phase is Phase.FORWARD
        ]
        if len(above) != 1 or above[0] in seen or 2 * level.get(above[0], 0.0) < level.get(site, 0.0):
            break
        if above[0].op in CASTS | MOVES or not above[0].line:
            break
        site = above[0]
        seen.add(site)
    return site


def _point(site: Site, sources: Sources, dtype: str) -> Site | None:
    """Return where a number is added in low precision to what a function is given, whose results here are subtracted.

    The difference of one function at two points is lost where the points are rounded to the same.
    """
    if site.op != "sub" or len(list(sources.get(site, ()))) != 1:
        return None
    level, seen = [site], {site}
    while level:
        level = [source for one in level for source in sources.get(one, ()) if source not in seen]
        seen.update(level)
        for one in level:
            if one.op in _MOVED_BY and one.dtype == dtype and len(set(sources.get(one, ())) - {one}) == 1:
                return one
    return None


def _dropped(
    site: Site,
    sources: Sources,
    dtype: str,
    outside: Mapping[tuple[str, int], Site | None],
    exact: Collection[Site],
) -> Site:
    """Return the nearest result upstream that was held in low precision, one that is not `exact` if there is.

    The site itself where there is none.
    """
    level, seen = [site], {site}
    while level:
        made = [outside.get((one.file, one.line)) for one in level]
        if found := next((one for one in made if one is not None), None):
            return found
        above = [source for one in level for source in sources.get(one, ()) if source not in seen]
        low = [source for source in above if source.dtype == dtype and source.op not in MOVES]
        if low:
            return next((one for one in low if one not in exact), low[0])
        seen.update(above)
        level = above
    return site
