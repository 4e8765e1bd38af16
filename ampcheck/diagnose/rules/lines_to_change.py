"""What to change where a script's numbers go wrong, where no rule has lines of its own: nothing was run again."""

import ast
import linecache
from collections.abc import Callable
from dataclasses import replace
from math import inf

from ampcheck.diagnose.rules.backward import is_rebuilt, lowered_again, makes_zeros, saving_cast
from ampcheck.diagnose.rules.backward_unscaled import SCALED
from ampcheck.diagnose.rules.first_places import runs_backward_only, shared_scaler
from ampcheck.diagnose.rules.framework_terms import weights_in_fp32
from ampcheck.diagnose.rules.loop_state import active_scalers, device_of
from ampcheck.diagnose.rules.makers import (
    before_cast,
    casts_at,
    changed_at,
    computed_by_class,
    held_in_fp32,
    is_layer,
    made_in_fp32,
    states_at,
)
from ampcheck.diagnose.rules.regions import called_as, in_fp32, in_fp32_but_for_modules, nodes_of
from ampcheck.diagnose.rules.saturation import at_its_limit
from ampcheck.diagnose.rules.scales_tried import (
    divided_in_half,
    fitting,
    has_come_down,
    larger_scale,
    scales_by_hand,
)
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import HALVES, SHORT_DTYPE
from ampcheck.values.op_kinds import CASTS, DIFFERENCES, LIMITS, rounds_inputs
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import clean, location

#: Operations that make a tensor of no other: in the dtype that they are given.
_MAKES = frozenset(
    f"{before}{name}{after}"
    for name in ("zeros", "ones", "full", "empty")
    for before, after in (("", ""), ("new_", ""), ("", "_like"))
)
#: Operations that compute a number of a number, and that a script calls by these names.
_OF_NUMBERS = frozenset(
    """sigmoid tanh exp expm1 log log2 log1p log10 sqrt rsqrt reciprocal sin cos tan square softmax log_softmax softplus
    logsigmoid erf atan asin acos sinh cosh""".split()
)
#: Functions of large numbers that turn on their last bits, as differences do.
_PERIODIC = frozenset({"sin", "cos", "tan"})
#: How many lines before a difference its numbers are computed.
_CLOSE = 8
#: Lines of products that are named.
_FEW = 3


def with_lines(report: Report, finding: Finding) -> Finding:
    """Return an error of a script with what to change at its lines."""
    lines = _LINES.get(finding.code)
    if lines is None or report.loop is None or finding.fix or finding.severity is not Severity.ERROR:
        return finding
    return replace(finding, fix=(*lines(report, finding), *at_its_limit(report, finding)))


def _in_fp32(report: Report, finding: Finding) -> tuple[str, ...]:
    """Return a region without autocast: where autocast is on, it casts again what was kept in FP32."""
    origin = finding.origin
    if origin is None or not origin.file or not origin.op:
        return ()
    if is_unscaled(report, origin) and not _change_there(report, origin):
        return SCALED
    after = next((site for site in finding.sites[1:] if _reads(site, origin)), None)
    if change := _change_there(report, origin) or _call_alone(report, finding, after):
        return (change,)
    in_place = origin.op.endswith("_") and origin.phase is Phase.FORWARD
    if not _written(report, origin):
        lines = _region(report, finding, origin, after)
        if origin.phase is Phase.BACKWARD and runs_backward_only(report, origin):
            lines = *lines, "    # a hook must return the dtype that it was given: .to(grad.dtype)"
        alone = changed_at(report, origin.location) is not None
        meets = finding.code == "AMP103"  # it may have been infinite before
        made = tuple(held_in_fp32(report, name) for name in _written_to(report, origin) if in_place or meets)
        made = made or (tuple(states_at(report, origin)) if in_place else ())
        return made if made and alone else (*made, *lines)
    return _uncast(report, finding, origin, after)


def _region(report: Report, finding: Finding, origin: Site, after: Site | None) -> tuple[str, ...]:
    """Return the lines of an operation, and of what reads its result, in FP32."""
    until = f" to {location(after.file, after.line)}" if after and _one_function(origin, after) else ""
    first, casts = _first_line(report, finding), casts_at(origin.file, origin.line)
    given = before_cast(origin.file, origin.line, _cast_before(report, origin))
    product = rounds_inputs(origin.op) or (after is not None and rounds_inputs(after.op))
    if first == "this line" and not product:  # autocast rounds nothing there
        if casts and not given and origin.phase is Phase.FORWARD:
            return ("# this line without its casts to half precision",)
        slope = origin.op.removesuffix("_backward") in _OF_NUMBERS  # that of a result which is rounded
        right = finding.code != "AMP501" and (slope or origin.phase is Phase.FORWARD)  # is what is read
        last = after.line if after and until else 0
        if right and (lines := in_fp32_but_for_modules(report, origin, last)):
            return lines
    if until and first != "this line":
        first = first.removesuffix(" to this line")
    what = f"{first}{until}, with .float() on what is read{given}"
    if casts:
        what = f"{what}, without its casts to half precision"
    if origin.op in CASTS and is_layer(report, origin.module) and first == "this line":
        what = f"{clean(origin.module)} in FP32: its inputs as .float()"
    return f"with torch.autocast({device_of(report)}, enabled=False):", f"    ...  # {what}"


def _uncast(report: Report, finding: Finding, origin: Site, after: Site | None) -> tuple[str, ...]:
    """Return how a cast that a script has written is left out, and where autocast may cast again."""
    held = SHORT_DTYPE[origin.dtype] if origin.dtype in HALVES else clean(report.precision)
    range_fails = held == "fp16" and (finding.code == "AMP101" or makes_zeros(report, origin))
    if range_fails and saving_cast(report) == origin and not finding.numbers.get("spreads_to"):
        return (_saved_in(report, origin, " here", range_fails=True),)  # it is read in the backward alone
    cast = f"# .float() here in place of the cast to {held}"
    if range_fails:
        cast = f"{cast}; or .bfloat16(), which has the range of FP32"
    elif after is not None:
        cast = f"{cast}: for all, or at least for what {location(after.file, after.line)} reads"
    states = [held_in_fp32(report, name) for name in _written_to(report, origin)]
    if changed_at(report, origin.location) is not None:  # it is cast again as it is written
        states = states or [made_in_fp32(report, origin.location)]
    product = after is not None and rounds_inputs(after.op)
    there = location(after.file, after.line) if after and product else _products(report, origin)
    if states or not there:
        return (cast, *states)
    again = f"{cast}; if autocast casts again at {there}:"
    region = f"with torch.autocast({device_of(report)}, enabled=False):"
    return again, region, "    ...  # that line, with .float() on what is read"


def _saved_in(report: Report, saved: Site, at: str, *, range_fails: bool) -> str:
    """Return in which precision to save for the backward: in as few bits as will do."""
    short = (saved.dtype == "float16" or report.precision == "fp16") and range_fails
    kind = "torch.bfloat16, which has the range of FP32, or torch.float32" if short else "torch.float32"
    return f"# save for the backward{at} in {kind}"


def _cast_before(report: Report, origin: Site) -> str:
    """Return the line above at which a script casts to half precision what this one may read, '' for none."""
    near = {
        site.line
        for site in report.low.sites
        if site.phase is origin.phase is Phase.FORWARD and site.dtype in HALVES and _written(report, site)
        if (site.file, site.module) == (origin.file, origin.module) and _one_function(site, origin)
        if origin.line - _CLOSE <= site.line < origin.line and casts_at(site.file, site.line)
    }
    return location(origin.file, max(near)) if near else ""


def _products(report: Report, origin: Site) -> str:
    """Return the lines behind a cast at which autocast may cast again: those of products, '' for none."""
    near = {
        site.line
        for site in report.low.sites
        if site.phase is Phase.FORWARD and rounds_inputs(site.op) and _one_function(origin, site)
        if (site.file, site.module) == (origin.file, origin.module)
        if origin.line < site.line <= origin.line + _CLOSE
    }
    return " and ".join(location(origin.file, line) for line in sorted(near)[:_FEW])


def _call_alone(report: Report, finding: Finding, after: Site | None) -> str:
    """Return the one call of a function of numbers at a line, with FP32 numbers; '' where more is to be changed.

    What a later line makes of its result stays in FP32 by itself, unless that is a product.
    """
    origin = finding.origin
    if origin is None or origin.phase is not Phase.FORWARD or origin.op not in _OF_NUMBERS:
        return ""
    if finding.code != "AMP501" or origin.dtype not in HALVES:  # what is read may be wrong already
        return ""
    if (after is not None and rounds_inputs(after.op)) or _first_line(report, finding) != "this line":
        return ""
    nodes = nodes_of(linecache.getline(origin.file, origin.line).strip())
    calls = [node for node in nodes if isinstance(node, ast.Call) and called_as(node.func) == origin.op]
    return in_fp32(calls[0]) if len(calls) == 1 else ""


def _first_line(report: Report, finding: Finding) -> str:
    """Return from which line on FP32 is needed: what nearly equal numbers are computed from must not be rounded."""
    place, shows = finding.sites[0], finding.sites[1:2]
    difference = bool(shows) and shows[0].op in DIFFERENCES | _PERIODIC
    near = [
        site
        for site in report.low.sites
        if site.phase is Phase.FORWARD and site.file == place.file
        if difference and place.line - _CLOSE <= site.line < place.line
    ]
    lines = {
        site.line
        for site in near
        if site.module == place.module and site.dtype in HALVES
        if site.op and site.op not in CASTS and not rounds_inputs(site.op)
    }
    products = {site.line for site in near if rounds_inputs(site.op)}
    first = min(lines - products, default=0)  # what a product gives is rounded by its layer
    return f"from {location(place.file, first)} to this line" if first else "this line"


def _change_there(report: Report, origin: Site) -> str:
    """Return what to change at a line that does not only compute in half precision, '' where that is all."""
    if origin.op in _MAKES and origin.dtype in HALVES:  # by a dtype of its own
        return f"# {origin.location}: dtype=torch.float32"
    if is_rebuilt(report, origin):
        held = f"numbers held in {clean(report.precision)}"
        lines = computed_by_class(report, origin)
        makes = f"the forward makes them{f', at {lines}' if lines else ''}"
        return f"# rebuilt here from {held}: hold them in FP32 where {makes}"
    if origin == lowered_again(report):
        off = f"torch.autocast({device_of(report)}, enabled=False)"
        return f"# where the backward computes this line again: as the forward does, in a region of {off}"
    saved = saving_cast(report) if origin.phase is Phase.BACKWARD else None
    if saved is not None and saved.location == origin.location:
        added = f"{SHORT_DTYPE[saved.dtype]}, in which the gradients of all its uses are added up"
        cast = f"# here, without the cast to {added}" if origin.op in CASTS else ""
        there = [pair for site, pair in report.errors.items() if site.location == saved.location]
        divided = origin.op == "div" and any(pair.lost for pair in there)  # by what is zero, and not in FP32
        return cast or _saved_in(report, saved, " here", range_fails=divided or makes_zeros(report, saved))
    if origin.op in LIMITS and any(jump.site == jump.dropped == origin for jump in report.error_jumps):
        return f"# {clean(origin.op)} limits numbers here that FP32 holds: keep those in FP32, without limit or cast"
    return ""


def is_unscaled(report: Report, origin: Site) -> bool:
    """Tell whether a gradient underflows where it is cast to fp16, for want of a loss scale."""
    cast = origin.op in CASTS and origin.phase is Phase.BACKWARD and report.precision == "fp16"
    return cast and report.loop is not None and not (report.log2_scale or active_scalers(report.loop))


def _reads(site: Site, origin: Site) -> bool:
    """Tell whether a result of the forward comes from a later line of the same file."""
    return (
        site.phase is origin.phase is Phase.FORWARD and site.file == origin.file and site.line > origin.line
    )


def _written(report: Report, origin: Site) -> bool:
    """Tell whether a script casts at a line, and not autocast for an operation there."""
    place = origin.module, origin.location
    there = [site.op for site in report.low.sites if site.op and (site.module, site.location) == place]
    return origin.op in CASTS and not any(map(rounds_inputs, there))


def _one_function(origin: Site, after: Site) -> bool:
    """Tell whether two lines of a file are of one function: a region holds no more."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = [one for one in nodes_of("".join(linecache.getlines(origin.file))) if isinstance(one, kinds)]
    spans = [(one.lineno, one.end_lineno or 0) for one in functions]
    inside = [
        {(first, last) for first, last in spans if first <= line <= last}
        for line in (origin.line, after.line)
    ]
    return inside[0] == inside[1]


def _written_to(report: Report, origin: Site) -> list[str]:
    """Return what of a module is not finite after the step, where a line of it casts numbers that are too large."""
    settled = report.outcomes.get("settled")
    state = settled.state if settled is not None and origin.module else {}
    return [name for name, off in state.items() if off == inf and name.rpartition(".")[0] == origin.module]


def _smaller_scale(report: Report, finding: Finding) -> tuple[str, ...]:
    origin = finding.origin
    lines: tuple[str, ...] = ()
    if (
        origin is not None and origin.op and origin.phase is not Phase.BACKWARD
    ):  # it makes finite what has overflowed
        skips = "a step whose gradients overflow must be skipped, and the scale halved"
        lines = (f"# without {clean(origin.op)} here: {skips}",)
    fits = max(fitting(report), default=report.log2_scale)
    by_hand = report.loop is not None and not active_scalers(report.loop)
    # The backward of a cast to FP32: there is no cast to half precision to leave out.
    casts_back = origin is not None and origin.op in CASTS and origin.phase is Phase.BACKWARD
    # A scale below 1 makes most gradients zero: what needs one is to be computed in FP32, where its line is known.
    if report.precision == "fp16" and fits < report.log2_scale and (lines or fits >= 0):
        grows = report.loop is not None and any(event.after > event.before for event in report.loop.scales)
        own = f"let it grow to 2.0**{fits}" if grows else f"multiply the loss by 2.0**{fits}"
        smaller = own if by_hand else f"init_scale=2.0**{fits}"
        return (
            f"# a smaller loss scale: {smaller} at most",
            *(line.replace("# ", "# and ") for line in lines),
        )
    if by_hand and casts_back and fits < 0 and fits in fitting(report):
        return (f"# let the loss scale fall below 1: 2.0**{fits} at most",)
    return lines or _in_fp32(report, finding)


def _larger_scale(report: Report, finding: Finding) -> tuple[str, ...]:
    settled, origin = report.outcomes["settled"], finding.origin
    larger = None if report.loop is None or report.loop.scaling else larger_scale(report, settled)
    if larger is not None and has_come_down(report, larger):
        larger = None
    if settled.log2_scale < 0 and shared_scaler(report):
        return (
            f"other = torch.amp.GradScaler({device_of(report)})  # one scaler for each optimizer",
            "# for one of them: other.scale(loss).backward(), other.step(optimizer)",
            "other.update()  # only in a step in which other.step was called",
        )
    if divided_in_half(report, settled):
        return weights_in_fp32(report)
    if larger is not None and report.loop is not None and scales_by_hand(report.loop):
        return (f"# a larger loss scale: 2.0**{larger}, here and where the gradients are divided by it",)
    saved = saving_cast(report)
    if origin is not None and (
        origin == saved or (origin.phase is Phase.BACKWARD and origin.dtype not in HALVES)
    ):
        at = " here" if origin == saved else f" ({saved.location})" if saved is not None else ""
        return (_saved_in(report, origin, at, range_fails=True),)
    if larger is not None and report.loop is not None:
        alone = f"multiply the loss by 2.0**{larger} before its backward, and divide the gradients by it"
        scaler = f"a larger loss scale: init_scale=2.0**{larger}"
        return (f"# {scaler if active_scalers(report.loop) else alone}",)
    underflowed = [site for site in finding.sites if site.op and site.phase is Phase.BACKWARD]
    return _in_fp32(report, replace(finding, sites=tuple(underflowed[:1])))


_LINES: dict[str, Callable[[Report, Finding], tuple[str, ...]]] = {
    "AMP101": _in_fp32,
    "AMP103": _in_fp32,
    "AMP104": _in_fp32,
    "AMP201": _larger_scale,
    "AMP202": _smaller_scale,
    "AMP501": _in_fp32,
}
