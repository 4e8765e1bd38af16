"""Where a backward loses bits."""

from math import inf, sqrt

from ampcheck.diagnose.rules.makers import casts_at
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import FP32, HALVES
from ampcheck.values.op_kinds import CASTS
from ampcheck.values.outcome import HARM_ERROR
from ampcheck.values.report import Report, by_place
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import ErrorJump, PairError, Phase, Site
from ampcheck.values.wording import clean, percent, power

#: A gradient this far off, and so many times further than all results before it, is where the backward loses bits.
BACKWARD_ERROR = 0.05
BACKWARD_FACTOR = 8.0
#: An error as large as the result itself: what comes later has nothing left to lose.
ALL_LOST = 1.0
#: Operations that add to a sum of many.
_SUMS = frozenset({"add", "add_", "sum"})
#: Operations that undo an addition or a product.
_REBUILDS = frozenset({"sub", "rsub", "div"})
#: Operations that limit numbers.
_LIMITS = frozenset({"clamp", "clamp_min", "clamp_max", "minimum", "maximum"})
#: How many times smaller than FP32's the largest number is that such an operation has let through.
_CUT_OFF = 2.0
#: Share of the numbers that a cast makes zero from which on a gradient that is computed with them may be wrong.
_MANY_ZEROS = 0.1
#: Share of FP32's result that is rounding of its own from which on it says nothing about another precision.
NOISE = 1 / 16


def lost_in_backward(report: Report) -> tuple[Site, float] | None:
    """Return the operation of the backward whose result is far off, where nothing before it is, and how far.

    Of an operation that runs often only the first calls are compared. Where all of these agree and a parameter's
    gradient does not, it is the sum of many in low precision that has lost them.
    """
    known, noise = 0.0, _noise_error(report)
    if rebuilt := _first_rebuilt(report, noise):
        saved = saving_cast(report)
        made = saved if saved is not None and saved.module == rebuilt.module else rebuilt
        return made, report.errors[rebuilt].relative_rms
    if again := _first_again(report, noise):
        return saving_cast(report) or lowered_again(report) or again, report.errors[again].relative_rms
    for site, pair in report.errors.items():
        error = pair.relative_rms
        if known > ALL_LOST:
            return None
        if not site.op or site.phase not in {Phase.FORWARD, Phase.BACKWARD} or noise < error < inf:
            continue
        if _goes_under(report, site):
            continue
        if site.phase is Phase.BACKWARD and inf > error > max(BACKWARD_ERROR, BACKWARD_FACTOR * known):
            limit = _limit_behind(report, site)
            saved = saving_cast(report) if site.dtype not in HALVES else None
            if saved is not None and makes_zeros(report, saved):
                return saved, error
            return limit or _summed_before(report, site), report.errors[limit or site].relative_rms
        known = max(known, error) if error < inf else known
    return _summed_in_low_precision(report, known)


def _limit_behind(report: Report, site: Site) -> Site | None:
    """Return what cuts off gradients that a scale multiplies, where what is off before is off from later calls only.

    In a loop over time an operation runs again behind a hook that it was called before.
    """
    limits = [one for one in report.errors if one.op.rstrip("_") in _LIMITS and one.phase is Phase.BACKWARD]
    if not limits or report.loop is None or report.log2_scale <= 0:
        return None
    worse = [
        one for one in limits if report.errors[site].relative_rms < report.errors[one].relative_rms < inf
    ]
    reference = by_place(report.reference)
    return next(
        (one for one in worse if one.place in reference and _cuts_off(report, one, reference[one.place])),
        None,
    )


def _cuts_off(report: Report, site: Site, wide: TensorStats) -> bool:
    """Tell whether a result is far smaller than FP32's is, multiplied by the loss scale."""
    return _CUT_OFF * report.low.sites[site].amax < wide.amax * 2.0**report.log2_scale


def is_rebuilt(report: Report, site: Site) -> bool:
    """Tell whether a backward of the script's own computes numbers again from others, as reversible layers do."""
    forward = {one.location for one in report.low.sites if one.phase is Phase.FORWARD and one.op}
    if site.phase is not Phase.BACKWARD or site.op not in _REBUILDS or site.location in forward:
        return False
    there = {one: stats for one, stats in report.low.sites.items() if one.location == site.location}
    # A gradient overflows at a loss scale that is too large for it.
    return all(_fits(report, one) for one, stats in there.items() if stats.nonfinite)


def _fits(report: Report, site: Site) -> bool:
    """Tell whether FP32's numbers would be finite in half precision at the loss scale."""
    wide = by_place(report.reference).get(site.place)
    return wide is not None and wide.amax * 2.0**report.log2_scale <= report.format.max


def _first_rebuilt(report: Report, noise: float) -> Site | None:
    """Return the first number that is rebuilt far worse than the forward was, and than gradients were before it."""
    right = wrong = 0.0
    for site, pair in report.errors.items():
        error = pair.relative_rms
        if site.op and error <= noise:
            if is_rebuilt(report, site) and error > max(HARM_ERROR, BACKWARD_FACTOR * right, 2.0 * wrong):
                return site
            right = max(right, error) if site.phase is Phase.FORWARD else right
            wrong = max(wrong, error) if site.phase is Phase.BACKWARD else wrong
    return None


def _first_again(report: Report, noise: float) -> Site | None:
    """Return the first result that a backward computes again far worse than the forward did."""
    forward = {site.place: pair for site, pair in report.errors.items() if site.phase is Phase.FORWARD}
    for site, pair in report.errors.items():
        if site.op and site.phase is Phase.RECOMPUTE and HARM_ERROR < pair.relative_rms <= noise:
            first = forward.get(site._replace(phase=Phase.FORWARD).place)
            if first is not None and pair.relative_rms > BACKWARD_FACTOR * first.relative_rms:
                return site
    return None


def lowered_again(report: Report) -> Site | None:
    """Return the first result that the forward has in FP32, and a backward that computes it again in half precision."""
    wide = {
        site.place for site in report.low.sites if site.phase is Phase.FORWARD and site.dtype == "float32"
    }
    again = (site for site in report.low.sites if site.op and site.phase is Phase.RECOMPUTE)
    lowered = (site for site in again if site.dtype in HALVES)
    return next((site for site in lowered if site._replace(phase=Phase.FORWARD).place in wide), None)


def saving_cast(report: Report) -> Site | None:
    """Return the only line of the forward that does nothing but cast to half precision, as what packs tensors does."""
    ops: dict[str, set[str]] = {}
    cast = {}
    for site in report.low.sites:
        if site.op and site.file and site.phase is Phase.FORWARD:
            ops.setdefault(site.location, set()).add(site.op)
            if site.dtype in HALVES:
                cast[site.location] = site
    rounds = {site for site, pair in report.errors.items() if pair.relative_rms}  # and not what was a bool
    saved = [site for at, site in cast.items() if ops[at] == {"_to_copy"} and site in rounds]
    return saved[0] if len(saved) == 1 else None


def reads_gradient(jump: ErrorJump) -> bool:
    """Tell whether a product of a forward is off by what a backward before it has cast: a script reads a gradient."""
    by_cast = jump.dropped.phase is Phase.BACKWARD and jump.dropped.op in CASTS
    return by_cast and jump.site.phase is Phase.FORWARD and jump.site.op in {"mul", "div"}


def gradient_read(report: Report) -> ErrorJump | None:
    """Return the first place where a script reads a gradient that was rounded before."""
    return next((jump for jump in report.error_jumps if reads_gradient(jump)), None)


def makes_zeros(report: Report, site: Site) -> bool:
    """Tell whether many of the numbers of a result are zero, and not in FP32."""
    pair = report.errors.get(site)
    return pair is not None and pair.lost > _MANY_ZEROS * pair.live


def _goes_under(report: Report, site: Site) -> bool:
    """Tell whether a result of the backward is added to something so much larger that its error shows no more."""
    if site.phase is not Phase.BACKWARD or not BACKWARD_ERROR < report.errors[site].relative_rms < inf:
        return False
    sites = list(report.errors)
    later = [one for one in sites[sites.index(site) :] if one.phase is Phase.BACKWARD]
    first_right = next((at for at, one in enumerate(later) if not _is_off(report, one)), len(later))
    own = report.errors[later[first_right - 1]]  # the last of those that are off, one after another
    return any(
        one.module == site.module
        and one.op in _SUMS
        and BACKWARD_FACTOR * report.errors[one].relative_rms < own.relative_rms
        and BACKWARD_FACTOR * _size(own) < _size(report.errors[one])
        for one in later[first_right:]
    )


def _is_off(report: Report, site: Site) -> bool:
    return report.errors[site].relative_rms > BACKWARD_ERROR


def _size(pair: PairError) -> float:
    return sqrt(pair.reference_squares / max(1, pair.sampled))


def limited_scaled(report: Report, site: Site, error: float) -> Finding | None:
    """Return what is wrong where a hook limits gradients that are multiplied by a loss scale: in FP32 none is."""
    if report.loop is None or report.log2_scale <= 0 or site.phase is not Phase.BACKWARD:
        return None
    if site.op.rstrip("_") not in _LIMITS:
        return None
    return Finding(
        "AMP401",
        "clip-before-unscale",
        "training-loop",
        Severity.ERROR,
        f"{clean(site.op)} in the backward limits gradients that are still multiplied by the loss scale "
        f"({power(report.log2_scale)}): what it gives is off by {percent(error)}",
        (site,),
        {"error": error},
        fix=(
            "# within a backward, gradients are multiplied by the loss scale: multiply the limit by it as well",
        ),
    )


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
    """Return the last sum in low precision before a cast to FP32, which loses nothing itself.

    The sum of another line is none of it where what it gives is right: autograd adds up what one tensor is used for.
    """
    sites = list(report.low.sites)
    if site.op == "add" and site in sites:  # as autograd adds up gradients
        return _many_times(report, sites[sites.index(site) :]) or site
    if site.op != "_to_copy" or site.dtype == report.dtype or site not in sites:
        return site
    before = [one for one in sites[: sites.index(site)] if one.module == site.module]
    sums = [one for one in before if one.phase is Phase.BACKWARD and one.op in _SUMS]
    made = next((one for one in reversed(sums) if one.dtype == report.dtype), site)
    right = made in report.errors and report.errors[made].relative_rms <= BACKWARD_ERROR
    return site if right and made.location != site.location else made


def _many_times(report: Report, sites: list[Site]) -> Site | None:
    """Return the cast of the script's behind a sum of gradients that is as far off: it is read many times."""
    summed, *later = sites
    casts = (one for one in later if one.module == summed.module and one.phase is Phase.BACKWARD)
    back = (one for one in casts if one.op in CASTS and one.dtype not in HALVES and one in report.errors)
    off = report.errors[summed].relative_rms
    far = (one for one in back if 2 * report.errors[one].relative_rms > off and casts_at(one.file, one.line))
    return next(far, None)
