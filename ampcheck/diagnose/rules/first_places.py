"""Where in a backward gradients first become zero or infinite."""

from ampcheck.diagnose.rules.loop_state import active_scalers, label
from ampcheck.diagnose.rules.scales_tried import at_any_scale, fitting, scales_by_hand
from ampcheck.values.loop import Event, Kind, Loop, LoopObject
from ampcheck.values.plan import DEFAULT_SCALE
from ampcheck.values.report import Report, by_place, low_backward
from ampcheck.values.trace import Phase, Site

#: Optimizers that a scaler must suit, if it is shared.
SEVERAL = 2


def first_flushed(report: Report, log2_scale: int) -> tuple[Site, ...]:
    """Return the backward operation, in order of execution, at which most of a gradient first becomes zero."""
    known = low_backward(report)
    for site in report.low.sites:
        stats = known.get(site.place)
        if stats is None or site.phase is not Phase.BACKWARD or site.dtype != report.dtype:
            continue
        if stats.nonzero and 2 * stats.underflowed(report.format, log2_scale).low > stats.nonzero:
            return (site,)
    return ()


def runs_backward_only(report: Report, site: Site) -> bool:
    """Tell whether a line is one of a hook, or of a backward that the script has written."""
    forward = (one for one in report.low.sites if one.phase is not Phase.BACKWARD)
    return all((one.file, one.line) != (site.file, site.line) for one in forward)


def shared_scaler(report: Report) -> tuple[Site, ...]:
    """Return where the scaler is made that several optimizers share."""
    if report.loop is None or len(label(report.loop, "optimizer")) < SEVERAL:
        return ()
    return _made(_only_scaler(report.loop))


def pushes_down(report: Report) -> tuple[Site, ...]:
    """Return the first backward operation in half precision whose result in FP32 is too large at a scale of 1."""
    known = low_backward(report)
    for site in report.low.sites:
        stats = known.get(site.place)
        held = site.phase is Phase.BACKWARD and site.dtype == report.dtype and site.file
        if stats is not None and held and stats.overflowed(report.format, 0).low:
            return (site,)
    return ()


def small_scale(report: Report) -> tuple[Site, ...]:
    """Return where a scaler is made that begins below torch's first scale, and that no overflow has kept there.

    Or where the script multiplies its loss by one number that never changes.
    """
    loop = report.loop
    if loop is not None and scales_by_hand(loop) and _is_constant(loop) and (scaled := _multiplied(loop)):
        return (Site("", "mul", "", Phase.BACKWARD, "", scaled.file, scaled.line),)
    scaler = None if loop is None or any(event.skipped for event in loop.scales) else _only_scaler(loop)
    if loop is None or scaler is None or loop.first_scales.get(scaler.label, DEFAULT_SCALE) >= DEFAULT_SCALE:
        return ()
    return _made(scaler)


def _only_scaler(loop: Loop) -> LoopObject | None:
    """Return the scaler of a script that has one."""
    scalers = active_scalers(loop)
    return loop.thing(*scalers) if len(scalers) == 1 else None


def _made(scaler: LoopObject | None) -> tuple[Site, ...]:
    if scaler is None or not scaler.line:
        return ()
    return (Site("", scaler.kind, "", Phase.STATE, "", scaler.file, scaler.line),)


def first_zeroed(report: Report) -> tuple[Site, ...]:
    """Return the backward operation at which most of a gradient is first zero and not in FP32, whatever the scale.

    What it multiplies by became zero before: a tensor that the forward has saved in half precision, for one.
    """
    reference, low = by_place(report.reference), by_place(report.low)
    for site in report.low.sites:
        exact, stats = reference.get(site.place), low[site.place]  # a line may cast more than once
        if site.phase is not Phase.BACKWARD or exact is None or not site.file:
            continue
        if 2 * (stats.zeros - exact.zeros) > exact.numel:
            return (site,)
    return ()


def at_the_scale(report: Report, bad: list[Site]) -> list[Site]:
    """Return what overflows, the first of it at the line that scales the loss where it is only the scale that is wrong.

    That is the gradient of the loss itself, at a scale that is unknown, or larger than torch's first one, which fits.
    Or any gradient at a scale of the script's own that never changes, where a smaller one fits.
    """
    loop = report.loop
    if loop is None or not bad or at_any_scale(report):
        return bad
    fits, constant = max(fitting(report), default=-1), _is_constant(loop)
    may_fit = bool(loop.scaling) or 2.0**fits >= DEFAULT_SCALE
    if not (constant and 0 <= fits < report.log2_scale) and (bad[0].module or not may_fit):
        return bad
    scaled = _multiplied(loop)
    return bad if scaled is None else [bad[0]._replace(file=scaled.file, line=scaled.line), *bad[1:]]


def _multiplied(loop: Loop) -> Event | None:
    events = (event for _, event in loop.sequence(1) if event.kind is Kind.BACKWARD and event.line)
    return next((event for event in events if event.scaled or event.by_hand), None)


def _is_constant(loop: Loop) -> bool:
    """Tell whether a script multiplies its losses by one number that never changes."""
    return not (active_scalers(loop) or any(event.after != event.before for event in loop.scales))
