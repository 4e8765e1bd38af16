"""Predicted against measured: which share of a step's gradients fp16 turns into zeros, scale by scale."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch

from ampcheck.diagnose.tables import scale_curve
from ampcheck.observe.cuda_on_cpu.wide import execute
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.reference.pair import SAMPLES, pair_errors
from ampcheck.observe.statistics.step_record import Fetched
from ampcheck.observe.step import Step, run
from ampcheck.values.formats import FP16
from ampcheck.values.report import Report, low_backward
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Phase, Site, Trace

ALL, ACTIVATIONS, WEIGHTS = "all", "activation gradients", "weight gradients"
#: Lines on which all calls of an operation ran in one precision.
PURE = "lines of one precision"
KINDS = (ALL, ACTIVATIONS, WEIGHTS, PURE)
#: Results of backward operations that are gradients of weights, by operation; the others are of activations.
_OF_WEIGHTS = {
    "convolution_backward": ("output[1]", "output[2]"),
    "native_layer_norm_backward": ("output[1]", "output[2]"),
    "native_batch_norm_backward": ("output[1]", "output[2]"),
    "native_group_norm_backward": ("output[1]", "output[2]"),
    "embedding_dense_backward": ("output",),
    "sum": ("output",),
}


@dataclass(frozen=True)
class Tally:
    """Elements not zero in the FP32 run, those predicted to underflow, and those that did; tallies add."""

    low: int = 0
    high: int = 0
    lost: int = 0
    live: int = 0
    nonfinite: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    @property
    def predicted(self) -> float:
        """Return the lower bound's share: only exact powers of two at the tie underflow beyond it."""
        return self.low / max(self.live, 1)

    @property
    def measured(self) -> float:
        return self.lost / max(self.live, 1)

    @property
    def outside(self) -> float:
        """Return how far the measured share lies outside of the predicted interval."""
        return max(self.low - self.lost, self.lost - self.high, 0) / max(self.live, 1)


@dataclass(frozen=True)
class Point:
    """One loss scale."""

    log2_scale: int
    tallies: dict[str, Tally]
    sampled: float  #: share lost among sampled elements, element by element
    overflowed: bool  #: a half-precision gradient held an inf or NaN
    predicted_overflow: bool  #: bounds whose lower end is above zero


@dataclass(frozen=True)
class Study:
    """One model: its points, and the predicted curve at every power of two."""

    name: str
    points: tuple[Point, ...]
    curves: dict[str, dict[int, Tally]]  #: kind -> log2 of the scale -> predictions
    histogram: TensorStats  #: of the FP32 run's activation gradients
    covered: float  #: share of half-precision gradient elements that have a counterpart in the FP32 run
    mixed: float  #: share of predicted elements on lines where the same operation also runs in FP32

    def clean(self, kind: str = ALL) -> Iterator[Tally]:
        """Yield the tallies of the scales from one up at which nothing overflowed."""
        return (p.tallies[kind] for p in self.points if p.log2_scale >= 0 and not p.overflowed)


def record(step: Step, dtype: torch.dtype | None, log2_scale: int) -> tuple[Trace, Fetched]:
    """Run and record a step from where its model stands."""
    recorder = Recorder(step.model, samples=SAMPLES, execute=execute)
    run(step, recorder, dtype, log2_scale)
    fetched = recorder.fetch()
    return recorder.trace(fetched), fetched


def study(name: str, step: Step, scales: Sequence[int]) -> Study:
    """Run a step in FP32 once and in fp16 at each scale, and compare."""
    before = Snapshot(step.model, step.batch)
    reference, samples = record(step, None, 0)
    points = []
    for scale in scales:
        before.restore()
        low, low_samples = record(step, torch.float16, scale)
        report = Report(name, "fp16", scale, reference, low)
        points.append(_point(report, samples, low_samples))
    before.restore()
    found = low_backward(report)
    curves: dict[str, dict[int, Tally]] = {kind: {} for kind in KINDS}
    for scale in range(min(scales), max(scales) + 1):
        for kind, tally in _tallies(report, found, scale).items():
            curves[kind][scale] = tally
    return Study(
        name, tuple(points), curves, _histogram(report, found), _covered(report, found), _mixed(report, found)
    )


def _point(report: Report, samples: Fetched, low_samples: Fetched) -> Point:
    scale = report.log2_scale
    found = low_backward(report)
    tallies = _tallies(report, found, scale)
    curve = scale_curve(report, [scale])[0]
    # The tallies are sums over places, the curve is what ampcheck shows: they must be one prediction.
    assert (tallies[ALL].low, tallies[ALL].high) == (curve.underflowed.low, curve.underflowed.high)
    assert tallies[ALL].live == curve.nonzero
    return Point(
        scale,
        tallies,
        _sampled(report, found, pair_errors(samples, low_samples, scale)),
        tallies[ALL].nonfinite > 0,
        curve.overflowed.low > 0,
    )


def _sampled(report: Report, found: dict[Site, TensorStats], errors: dict) -> float:
    lost = live = 0.0
    for site, error in errors.items():
        if error.live and site.dtype == report.dtype and site.place in found:
            weight = found[site.place].nonzero
            lost, live = lost + weight * error.lost / error.live, live + weight
    return lost / live if live else 0.0


def _low_places(report: Report) -> dict[Site, tuple[TensorStats, TensorStats]]:
    """Return, by place of a backward result, the low run's statistics of its fp16 and of all its calls."""
    half: dict[Site, TensorStats] = {}
    every: dict[Site, TensorStats] = {}
    for site, stats in report.low.sites.items():
        if site.op and site.phase is Phase.BACKWARD:
            every[site.place] = every.get(site.place, TensorStats()) + stats
            if site.dtype == report.dtype:
                half[site.place] = half.get(site.place, TensorStats()) + stats
    return {place: (stats, every[place]) for place, stats in half.items()}


def _tallies(report: Report, found: dict[Site, TensorStats], scale: int) -> dict[str, Tally]:
    low = _low_places(report)
    sums = dict.fromkeys(KINDS, Tally())
    for place, before in found.items():
        half, every = low[place]
        tally = _tally(before, half if half.numel == before.numel else every, scale)
        sums[ALL] += tally
        if half.numel == every.numel:
            sums[PURE] += tally
        weights = _weight_part(report, place, tally, scale)
        if weights is not None:
            sums[WEIGHTS] += weights
            sums[ACTIVATIONS] += tally - weights
    return sums


def _tally(before: TensorStats, after: TensorStats, scale: int) -> Tally:
    underflowed = before.underflowed(FP16, scale)
    lost = after.zeros - before.zeros
    return Tally(
        underflowed.low, underflowed.high, lost, before.nonzero, max(0, after.nonfinite - before.nonfinite)
    )


def _weight_part(report: Report, place: Site, tally: Tally, scale: int) -> Tally | None:
    """Return which part of a place's tally is of weights' gradients; None where that cannot be told.

    A linear layer's backward is two products of the same name; one of them is the gradient of its weight,
    which also stands in the parameter. That works for a layer that runs once and shares no weight.
    """
    if place.op != "mm":
        return tally if place.slot in _OF_WEIGHTS.get(place.op, ()) else Tally()
    calls = next((info.calls for info in report.low.modules if info.path == place.module), 0)
    pair = [_state(trace, place.module) for trace in (report.reference, report.low)]
    if calls != 1 or pair[0] is None or pair[1] is None:
        return None
    return _tally(pair[0], pair[1], scale)


def _state(trace: Trace, module: str) -> TensorStats | None:
    return next(
        (s for site, s in trace.sites.items() if site.module == module and site.slot == "param_grad[weight]"),
        None,
    )


def _histogram(report: Report, found: dict[Site, TensorStats]) -> TensorStats:
    of_activations = (
        stats
        for place, stats in found.items()
        if _weight_part(report, place, Tally(), 0) == Tally()
        and place.op != "mm"
        and place.slot not in _OF_WEIGHTS.get(place.op, ())
    )
    return sum(of_activations, TensorStats())


def _covered(report: Report, found: dict[Site, TensorStats]) -> float:
    """Casts are left out: they copy what an operation computed."""
    low = {place: half for place, (half, _) in _low_places(report).items() if place.op != "_to_copy"}
    whole = sum(stats.numel for stats in low.values())
    return sum(stats.numel for place, stats in low.items() if place in found) / max(whole, 1)


def _mixed(report: Report, found: dict[Site, TensorStats]) -> float:
    low = _low_places(report)
    mixed = sum(stats.numel for place, stats in found.items() if low[place][0].numel != low[place][1].numel)
    return mixed / max(sum(stats.numel for stats in found.values()), 1)
