"""What a script's loss scales did, beside what the range of FP32's gradients says of them."""

from math import inf

from ampcheck.diagnose.rules.loop_state import active_scalers, stay_infinite
from ampcheck.diagnose.scaling.gradients import gradient_tensors
from ampcheck.diagnose.tables import SCALES, best_scale, scale_curve
from ampcheck.values.formats import FP16, HALVES
from ampcheck.values.loop import Loop
from ampcheck.values.outcome import Outcome
from ampcheck.values.report import Report, by_place, low_backward
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import clean, plural, power, scale_words

#: The part of steps that a scaler which goes on has skipped at most, all of them in the first half.
_FEW = 0.05
#: The part of steps that a scaler skips which never finds its scale.
_NEARLY_ALL = 0.95
#: Log2 of the smallest loss scale that is looked at for a script, which may have any.
LOWEST = -24


def fitting(report: Report) -> list[int]:
    """Return log2 of the loss scales at which the range of FP32's gradients overflows nothing."""
    scales = range(LOWEST if report.loop is not None else SCALES.start, SCALES.stop)
    return [point.log2_scale for point in scale_curve(report, scales) if not point.overflowed.high]


def _lets_none_through(loop: Loop, scaler: str) -> bool:
    """Tell whether a scaler skips steps for ever: one may pass where the scale is too small for a float32."""
    skips, updates = len(loop.skips(scaler)), len(loop.updates(scaler))
    return loop.settled(scaler) is None or skips > _NEARLY_ALL * updates > 0


#: Octaves below a scale that suits gradients at which overflows have nothing to do with the scale.
_FAR_BELOW = 8


def at_any_scale(report: Report) -> bool:
    """Tell whether steps of a script overflowed at scales that suit the range of FP32's gradients, and none did not.

    Or at scales far below: another optimizer may step meanwhile.
    """
    loop, fits = report.loop, fitting(report)
    if loop is None or not fits or report.precision != "fp16":
        return False
    lowest = min((event.before for event in loop.scales if event.skipped), default=inf)
    if all(_lets_none_through(loop, scaler) for scaler in loop.first_scales):
        return lowest <= 2.0 ** max(fits)
    return lowest <= 2.0 ** (max(fits) - _FAR_BELOW)


def over_in_loop(report: Report, fit: int) -> str:
    """Return at which of a script's scales gradients overflowed, and which one suits them where one does."""
    assert report.loop is not None
    tried = {event.before for event in report.loop.scales if event.skipped}
    down = f"every loss scale down to {scale_words(min(tried))}" if len(tried) > 1 else ""
    if at_any_scale(report):
        return f"at {down or 'the loss scale in use'}: none heals it"
    at = f"{down} that was recorded" if down else f"loss scale {power(report.log2_scale)}"
    return f"at {at}; {power(fit)} is the largest that is predicted to fit"


#: Operations whose backward takes the slope from the result: 1 - y of a sigmoid, 1 - y**2 of a tanh.
_SLOPES = frozenset({"sigmoid_backward", "tanh_backward"})
#: A gradient from which on a zero of half precision is none of its range.
_IN_RANGE = 16.0 * FP16.smallest_subnormal


def found_below(report: Report, settled: Outcome) -> str:
    """Return why the overflow of the recorded steps says little of the scale: '' where it says enough.

    A script's own scaler went on below it, or infinite gradients were never cleared.
    """
    loop = report.loop
    if loop is not None and stay_infinite(loop):
        return (
            f"at loss scale 2^{report.log2_scale}; the gradients of a skipped step are not cleared (AMP206)"
        )
    for scaler in loop.first_scales if loop is not None else ():
        assert loop is not None
        skips = [event for event in loop.scales if event.scaler == scaler and event.skipped]
        early = [event for event in skips if event.step < (loop.settled(scaler) or 0)]
        if skips and len(skips) <= _FEW * loop.steps and skips[-1].step < loop.steps / 2:
            early = skips  # gradients have grown before it found its scale
        after = min((event.after for event in early), default=inf)
        if after < 2.0**settled.log2_scale:
            settles = f"the scaler settles at {scale_words(after)} after {plural(len(early), 'skipped step')}"
            return f"at loss scale 2^{report.log2_scale}; {settles}"
    return ""


def divided_in_half(report: Report, settled: Outcome) -> bool:
    """Tell whether a loss scale cannot help, since what it multiplies is held in float16 when it is divided by it.

    A scaler divides what optimizers are given; a script by itself may copy gradients to FP32 first.
    """
    if report.loop is None or settled.log2_scale <= 0:
        return False
    held = {
        f"{site.module}.{site.slot.removeprefix('param_grad[').removesuffix(']')}".lstrip("."): site.dtype
        for site in report.low.sites
        if site.slot.startswith("param_grad[")
    }
    lost = settled.underflow_by if active_scalers(report.loop) else held
    return {dtype for name, dtype in held.items() if name in lost} == {"float16"}


def saturated(report: Report) -> Site | None:
    """Return what gives no gradient at any loss scale: its slope comes from a result that is rounded to its limit."""
    wide = by_place(report.reference)
    return next(
        (
            site
            for site, stats in report.low.sites.items()
            if site.op in _SLOPES
            and site.dtype in HALVES
            and stats.numel == stats.zeros
            and site.place in wide
            if wide[site.place].amax * 2.0**report.log2_scale > _IN_RANGE
        ),
        None,
    )


def larger_scale(report: Report, settled: Outcome) -> int | None:
    """Return log2 of the loss scale that suits a script's gradients better by their range in FP32, if one does."""
    if saturated(report) is not None:
        return None
    points = scale_curve(report, range(settled.log2_scale, SCALES.stop))
    best = best_scale(points)
    if best is None or best.log2_scale == settled.log2_scale:
        return None
    return best.log2_scale if 2 * best.underflowed.low <= points[0].underflowed.low else None


def has_come_down(report: Report, log2_scale: int) -> bool:
    """Tell whether all scalers had a loss scale, and fell from there: to begin with it again changes nothing."""
    first = () if report.loop is None else report.loop.first_scales.values()
    return min(first, default=0.0) >= 2.0**log2_scale


def predicted_scale(report: Report, settled: Outcome) -> str:
    """Return in words which larger loss scale suits a script's gradients better; nothing was run again."""
    if report.loop is not None and report.loop.scaling:
        return ""
    larger = larger_scale(report, settled)
    if (flat := saturated(report)) is not None:
        op = clean(flat.op.removesuffix("_backward"))
        return f"no loss scale heals it: half precision rounds what {op} gives to its limit, where the slope is zero"
    if larger is None:
        return "no larger loss scale is predicted to heal it"
    if has_come_down(report, larger):
        return "the loss scale fell that far in the run, so a larger first one changes nothing"
    none = report.loop is not None and (scales_by_hand(report.loop) or not active_scalers(report.loop))
    write = "" if none else f": init_scale=2.0**{larger}"
    return f"at {power(larger)} the fewest are predicted to underflow{write}"


def scales_by_hand(loop: Loop) -> bool:
    """Tell whether a script multiplies its losses itself, and by what is known."""
    return bool(loop.first_scales) and not active_scalers(loop)


def overflowing(report: Report, log2_scale: int) -> list[Site]:
    """Return the backward operations that FP32 says overflow at this scale, in order of execution."""
    known = low_backward(report) | gradient_tensors(report)
    return [
        site
        for site in report.low.sites
        if site.phase is Phase.BACKWARD and site.dtype == report.dtype and site.place in known
        if known[site.place].overflowed(report.format, log2_scale).low
    ]


def overflows_all_along(report: Report, place: str) -> bool:
    """Tell whether gradients of several modules of one line overflow without any scale: one in FP32 is too few."""
    bad = overflowing(report, 0)
    return len({site.module for site in bad}) > 1 and {site.location for site in bad} == {place}
