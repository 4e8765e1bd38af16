"""What renderers show: rows worked out from a report, in the order in which they matter."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ampcheck.diagnose.landscape import Zone
from ampcheck.values.formats import HALVES, SHORT_DTYPE
from ampcheck.values.report import Report, by_place, low_backward, low_tensors
from ampcheck.values.stats import Bounds, TensorStats, merge
from ampcheck.values.trace import Cast, CastCount, PairError, Phase, Site, Trace, total

#: Loss scales shown: from none to the largest that GradScaler reaches in ordinary training.
SCALES = range(25)
#: Share of lost elements from which a layer, or all gradients together, is in trouble. Rounding alone lets
#: far fewer cross a ReLU's zero, and a loss scale that suits the gradients loses far fewer.
TROUBLE_SHARE = 0.01
_CAST = "_to_copy"


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One module and the operations in its own forward, children left out."""

    module: str
    kind: str  #: class name
    dtypes: tuple[str, ...]  #: of the operations' results in the forward, most elements first
    activations: TensorStats  #: results of forward operations in the low-precision run
    gradients: TensorStats  #: results of backward operations in the low-precision run, unscaled
    underflow_forward: float  #: share of non-zero reference elements that are zero in low precision
    underflow_backward: float
    overflowed: int  #: elements that are finite in the reference only
    casts: int  #: calls
    cast_bytes: int
    error: float  #: worst relative RMS error of a forward result against the reference
    trouble: float  #: what the rows are sorted by: overflow first, then the share that was lost

    @property
    def troubled(self) -> bool:
        """Tell whether the layer needs a look."""
        return self.trouble >= TROUBLE_SHARE

    @property
    def location(self) -> str:
        """Return the name shown for the module; the root and the loss share one."""
        return self.module or "(root)"


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What one loss scale does to all low-precision backward tensors, predicted from the FP32 run."""

    log2_scale: int
    underflowed: Bounds
    subnormal: Bounds
    overflowed: Bounds
    nonzero: int  #: elements that are not zero in the FP32 run

    @property
    def zones(self) -> dict[Zone, Bounds]:
        """Return how many elements lie in each zone in which something is lost."""
        return {
            Zone.UNDERFLOWED: self.underflowed,
            Zone.SUBNORMAL: self.subnormal,
            Zone.OVERFLOW: self.overflowed,
        }


def scale_curve(report: Report, scales: Iterable[int] = SCALES) -> tuple[CurvePoint, ...]:
    """Return what each loss scale would do to the gradients."""
    tensors = list(low_backward(report).values())
    whole = merge(tensors)
    fmt = report.format
    top = fmt.max_exponent
    return tuple(
        CurvePoint(
            scale,
            whole.underflowed(fmt, scale),
            whole.subnormal(fmt, scale),
            # Tensor by tensor: each one's own largest element tells whether its top binade overflows.
            sum((t.overflowed(fmt, scale) for t in tensors if t.highest + scale >= top), Bounds(0, 0)),
            whole.nonzero,
        )
        for scale in scales
    )


def best_scale(points: Iterable[CurvePoint]) -> CurvePoint | None:
    """Return the scale that loses the fewest elements and overflows none, the smallest of equals."""
    safe = (point for point in points if not point.overflowed.high)
    return min(safe, key=lambda point: point.underflowed.low, default=None)


@dataclass(frozen=True, slots=True)
class Loss:
    """How many elements became zero in low precision, of those that are not zero in the reference."""

    lost: int
    live: int

    @property
    def share(self) -> float:
        """Return the share that was lost; 0.0 where there was nothing to lose."""
        return self.lost / self.live if self.live else 0.0


def measured_loss(report: Report, phase: Phase) -> Loss:
    """Return what became zero in the low-precision results of a phase, measured by comparing both runs."""
    reference = low_tensors(report, phase)
    low = by_place(report.low)
    return Loss(*_lost({place: low[place] for place in reference}, reference))


def cast_rows(report: Report) -> tuple[tuple[Cast, CastCount], ...]:
    """Return the casts of the low-precision run, those that write most first, then as executed."""
    return tuple(sorted(report.low.casts.items(), key=lambda row: -row[1].bytes))


@dataclass(frozen=True, slots=True)
class DtypeRow:
    """In what an operation's results are held: elements by phase, in half precision and in FP32 or wider."""

    op: str
    places: int  #: lines of code, in how many modules
    forward_half: int = 0
    forward_wide: int = 0
    backward_half: int = 0
    backward_wide: int = 0

    @property
    def elements(self) -> int:
        """Return the elements of all results."""
        return self.forward_half + self.forward_wide + self.backward_half + self.backward_wide


def dtype_rows(report: Report) -> tuple[DtypeRow, ...]:
    """Return what a dry run has instead of values: operations and their dtypes, those that write most first.

    Casts are left out; they have a table of their own.
    """
    counts: dict[str, Counter[str]] = {}
    for site, elements in report.low.elements.items():
        if site.op and site.op != _CAST:
            phase = "backward" if site.phase is Phase.BACKWARD else "forward"
            row = counts.setdefault(site.op, Counter())
            row[f"{phase}_{'half' if site.dtype in HALVES else 'wide'}"] += elements
            row["places"] += 1
    rows = [DtypeRow(op, **row) for op, row in counts.items()]
    return tuple(sorted(rows, key=lambda row: -row.elements))


def first_overflow(report: Report) -> Site | None:
    """Return the first operation whose result holds an inf or NaN that the reference does not have.

    Ranks ran at the same time: of a merged report it is the first by name, in whichever order they were merged.
    """
    found = {site: stats for site, stats in report.low.sites.items() if stats.nonfinite and site.op}
    reference = by_place(report.reference) if found else {}
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        over = [s for s in found if s.phase is phase and _overflowed({s: found[s]}, reference)]
        if over:
            return min(over) if report.ranks else over[0]
    return None


def layer_rows(report: Report) -> tuple[LayerRow, ...]:
    """Return a row for each module with operations of its own, most troubled first, then as executed."""
    forward = _group(report.low, lambda site: _outputs(site, Phase.FORWARD))
    backward = _group(report.low, lambda site: _outputs(site, Phase.BACKWARD))
    reference = by_place(report.reference)
    kinds = {module.path: module.kind for module in report.low.modules}
    casts = total((cast.module, count) for cast, count in report.low.casts.items())
    rows = []
    for path in dict.fromkeys([*forward, *backward]):
        module = (path, kinds.get(path, ""), casts.get(path, CastCount()))
        rows.append(_row(report, module, forward.get(path, {}), backward.get(path, {}), reference))
    return tuple(sorted(rows, key=lambda row: -row.trouble))


def _group(trace: Trace, key: Callable[[Site], str | None]) -> dict[str, dict[Site, TensorStats]]:
    groups: dict[str, dict[Site, TensorStats]] = {}
    for site, stats in trace.sites.items():
        name = key(site)
        if name is not None:
            groups.setdefault(name, {})[site] = stats
    return groups


def _outputs(site: Site, phase: Phase) -> str | None:
    """Return the module of an operation's result in this phase, None for anything else."""
    return site.module if site.op and site.phase is phase else None


def _row(
    report: Report,
    module: tuple[str, str, CastCount],
    forward: dict[Site, TensorStats],
    backward: dict[Site, TensorStats],
    reference: dict[Site, TensorStats],
) -> LayerRow:
    path, kind, casts = module
    lost_forward, live_forward = _lost(forward, reference)
    lost_backward, live_backward = _lost(backward, reference)
    overflowed = sum(_overflowed(sites, reference) for sites in (forward, backward))
    shares = (lost_forward / max(live_forward, 1), lost_backward / max(live_backward, 1))
    return LayerRow(
        path,
        kind,
        _dtypes(forward or backward),
        merge(forward.values()),
        _unscaled(backward.values(), report.log2_scale),
        *shares,
        overflowed,
        casts.calls,
        casts.bytes,
        max((_error(report.errors, site) for site in forward), default=0.0),
        (1e9 if overflowed else 0.0) + max(shares),
    )


def _unscaled(tensors: Iterable[TensorStats], log2_scale: int) -> TensorStats:
    """Return the gradients' statistics as they are without the loss scale, for showing ranges."""
    whole = merge(tensors)
    counts = {exponent - log2_scale: count for exponent, count in whole.exponents()}
    return TensorStats.from_counts(
        counts,
        zeros=whole.zeros,
        infs=whole.infs,
        nans=whole.nans,
        amax=whole.amax * 2.0**-log2_scale,
        sum_squares=whole.sum_squares * 4.0**-log2_scale,
    )


def _error(errors: object, site: Site) -> float:
    pair = errors.get(site) if isinstance(errors, dict) else None
    return pair.relative_rms if isinstance(pair, PairError) else 0.0


def _dtypes(sites: dict[Site, TensorStats]) -> tuple[str, ...]:
    elements: dict[str, int] = {}
    for site, stats in sites.items():
        name = SHORT_DTYPE.get(site.dtype, site.dtype)
        elements[name] = elements.get(name, 0) + stats.numel
    return tuple(sorted(elements, key=lambda name: -elements[name]))


def _lost(sites: dict[Site, TensorStats], reference: dict[Site, TensorStats]) -> tuple[int, int]:
    """Return (elements that became zero, elements that are not zero in the reference)."""
    lost = live = 0
    for site, stats in sites.items():
        before = reference.get(site.place)
        if before is not None and before.numel == stats.numel:
            live += before.nonzero
            lost += max(0, stats.zeros - before.zeros)
    return lost, live


def _overflowed(sites: dict[Site, TensorStats], reference: dict[Site, TensorStats]) -> int:
    """Return the elements that are no finite number here and were in the reference."""
    known = ((stats, reference.get(site.place)) for site, stats in sites.items())
    return sum(max(0, stats.nonfinite - before.nonfinite) for stats, before in known if before is not None)
