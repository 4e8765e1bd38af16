"""Which tensors a loss scale has to suit: all that the backward holds in low precision."""

from collections.abc import Iterator
from itertools import chain

from ampcheck.diagnose.scaling.rounding import octave_energy
from ampcheck.values.formats import Format
from ampcheck.values.report import Report, by_place, low_backward
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Phase, Site

Sites = list[tuple[Site, TensorStats]]

#: The operation that autocast casts with.
_CAST = "_to_copy"
#: Norm, relative to the largest gradient of its line, below which a gradient is a zero that FP32 rounded,
#: as that of queries where there is one key only: a few times FP32's epsilon.
_NOISE = 2.0**-21
#: The same for a sum, which adds up the rounding of many: a bias in front of a normalisation has no other.
_SUM_NOISE = 2.0**-18


def gradient_tensors(report: Report) -> dict[Site, TensorStats]:
    """Return, before scaling, every tensor that the low-precision backward held in low precision.

    These are the gradients computed in low precision, as FP32 has them, and those that were cast to it. Left
    out are gradients that are zero but for FP32's noise, and tensors whose overflow was seen to do no harm.
    """
    tensors = low_backward(report) | dict(_casts(report))
    left_out = _absorbed(report) | _noise(report, tensors)
    kept = {place: stats for place, stats in tensors.items() if place not in left_out}
    modules: dict[str, Sites] = {}
    for site, stats in report.reference.sites.items():
        modules.setdefault(site.module, []).append((site, stats))
    parts = (_parts(place, stats, modules.get(place.module, [])) for place, stats in kept.items())
    return dict(chain.from_iterable(parts))


def maxima(report: Report) -> tuple[float, ...]:
    """Return each step's largest magnitude before scaling, as the low-precision run had it, or inf."""
    return tuple(
        float("inf") if step.nonfinite else step.grad_amax * 2.0**-step.log2_scale
        for step in report.low.steps
    )


def _casts(report: Report) -> Iterator[tuple[Site, TensorStats]]:
    """Yield the casts of the backward to low precision, each as what was cast.

    The tensor before a cast was computed on the same line, or on a line called from it, in FP32: the same
    number of elements and, where the format holds them, the same magnitudes. Where it is not found the result
    of the cast stands for it: what was underflowed is then missing, but not what overflows.
    """
    reference = by_place(report.reference)
    wide = {
        site: stats
        for site, stats in report.low.sites.items()
        if site.phase is Phase.BACKWARD and site.op and site.dtype == "float32"
    }
    for site, result in report.low.sites.items():
        if site.phase is not Phase.BACKWARD or site.op != _CAST or site.dtype != report.dtype:
            continue
        source = _source(site, wide, report)
        if source is not None and source.place in reference:
            yield site.place, reference[source.place]
        else:
            yield site.place, _unscaled(result, report.format, report.log2_scale)


def _source(cast: Site, wide: dict[Site, TensorStats], report: Report) -> Site | None:
    """Return the site whose tensors a cast rounded: the one that, rounded, has the same elements."""
    result = report.low.sites[cast]
    same = [site for site, stats in wide.items() if stats.numel == result.numel]
    ranked = sorted(
        (_apart(wide[site], result, report.format), (site.file, site.line) != (cast.file, cast.line), site)
        for site in same
    )
    # Rounding lifts one element in some thousands into the next octave.
    return ranked[0][2] if ranked and ranked[0][0] <= result.numel * report.format.epsilon * 4 else None


def _apart(before: TensorStats, after: TensorStats, fmt: Format) -> int:
    """Return how many elements speak against one tensor being the other one rounded."""
    had, has = dict(before.exponents()), dict(after.exponents())
    normal = sum(abs(had.get(e, 0) - has.get(e, 0)) for e in range(fmt.min_exponent + 1, fmt.max_exponent))
    underflowed = before.underflowed(fmt)
    zeros = after.zeros - before.zeros
    return normal + max(underflowed.low - zeros, zeros - underflowed.high, 0)


def _unscaled(result: TensorStats, fmt: Format, log2_scale: int) -> TensorStats:
    """Return what a cast made, without the scale; an element that overflowed is put just above the format."""
    counts = {exponent - log2_scale: count for exponent, count in result.exponents()}
    over = fmt.max_exponent + 1 - log2_scale
    if result.nonfinite:
        counts[over] = result.nonfinite
    amax = 2.0**over if result.nonfinite else result.amax * 2.0**-log2_scale
    squares = result.sum_squares * 4.0**-log2_scale + result.nonfinite * 4.0**over
    return TensorStats.from_counts(counts, zeros=result.zeros, amax=amax, sum_squares=squares)


def _parts(site: Site, stats: TensorStats, module: Sites) -> Iterator[tuple[Site, TensorStats]]:
    """Yield the gradient of a parameter and the rest of a site apart, where one operation makes both.

    A matrix product does: summed over a batch, the gradient of its weight can hide all else. `module` holds
    what FP32 has at all sites of the module.
    """
    alone = {_elements(held) for made, held in module if made.phase is Phase.BACKWARD}
    for state, grad in module:
        if not state.slot.startswith("param_grad") or not grad.nonzero or _elements(grad) in alone:
            continue
        rest = _without(stats, grad)
        if rest is not None and rest.nonzero:
            yield site._replace(slot=state.slot), grad
            stats = rest
    yield site, stats


def _elements(stats: TensorStats) -> tuple[int, tuple[int, ...], int]:
    return stats.lowest, stats.counts, stats.zeros


def _without(whole: TensorStats, part: TensorStats) -> TensorStats | None:
    """Return the statistics of the elements that are not in a part, None if the part is none of the whole."""
    counts, taken = dict(whole.exponents()), dict(part.exponents())
    rest = {exponent: count - taken.pop(exponent, 0) for exponent, count in counts.items()}
    zeros = whole.zeros - part.zeros
    if taken or zeros < 0 or min(rest.values(), default=0) < 0 or whole.nonfinite:
        return None
    top = max((exponent for exponent, count in rest.items() if count), default=whole.highest)
    # The exponents tell the energy to a few percent; a difference of sums of squares could be noise.
    energy = sum(count * octave_energy(exponent) for exponent, count in rest.items())
    amax = min(whole.amax, 2.0 ** (top + 1))
    return TensorStats.from_counts(rest, zeros=zeros, amax=amax, sum_squares=energy)


def _absorbed(report: Report) -> set[Site]:
    """Return the places that overflowed in a run whose parameters' gradients were still finite."""
    if not report.low.steps or any(step.nonfinite for step in report.low.steps):
        return set()
    return {
        site.place
        for site, stats in report.low.sites.items()
        if site.phase is Phase.BACKWARD and stats.nonfinite
    }


def _noise(report: Report, tensors: dict[Site, TensorStats]) -> set[Site]:
    largest: dict[tuple[str, str, int], float] = {}
    for site, stats in by_place(report.reference).items():
        if site.phase is Phase.BACKWARD:
            line = (site.module, site.file, site.line)
            largest[line] = max(largest.get(line, 0.0), stats.sum_squares)
    return {
        site
        for site, stats in tensors.items()
        if stats.sum_squares < _noise_of(site) ** 2 * largest.get((site.module, site.file, site.line), 0.0)
    }


def _noise_of(site: Site) -> float:
    is_bias = site.op == "convolution_backward" and site.slot == "output[2]"
    return _SUM_NOISE if site.op == "sum" or is_bias else _NOISE
