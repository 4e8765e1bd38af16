"""What points at a culprit: places in the order in which a re-run should suspect them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ampcheck.report import Report, by_place
from ampcheck.stats import TensorStats
from ampcheck.trace import Phase, Site

#: A result this far off its reference is worth suspecting before one that is merely rounded.
SUSPICIOUS_ERROR = 0.05


@dataclass(frozen=True, slots=True)
class Suspect:
    """A module, or a line of functional code outside of modules, that may have to stay in FP32."""

    module: str = ""
    line: str = ""  #: "file:line"

    @property
    def name(self) -> str:
        """Return how a person would call it."""
        return self.module or self.line


def suspects(report: Report) -> list[Suspect]:
    """Return every place that works in low precision, the best evidence first."""
    reference = by_place(report.reference)
    ordered = [
        *(site for leap in report.leaps for site in (leap.dropped, leap.site)),
        *_origins(report, reference, Phase.FORWARD),
        *_origins(report, reference, Phase.BACKWARD),
        *_wrong(report),
        *(site for site in report.low.sites if site.op and site.dtype == report.dtype),
        *_failed(report),
    ]
    return list(dict.fromkeys(found for site in ordered for found in _suspect(site)))


def _suspect(site: Site) -> Iterator[Suspect]:
    if site.module:
        yield Suspect(module=site.module)
    elif site.location:
        yield Suspect(line=site.location)


def newly_nonfinite(report: Report, phase: Phase, reference: dict[Site, TensorStats]) -> list[Site]:
    """Return the operations of a phase whose results are finite in FP32 only, in order of execution."""
    return [
        site
        for site, stats in report.low.sites.items()
        if site.phase is phase and site.op and stats.nonfinite > reference.get(site.place, stats).nonfinite
    ]


def healthy_forward(report: Report) -> bool:
    """Tell whether every result of the forward that is finite in FP32 is finite in low precision."""
    return not newly_nonfinite(report, Phase.FORWARD, by_place(report.reference))


def _origins(report: Report, reference: dict[Site, TensorStats], phase: Phase) -> Iterable[Site]:
    """Return where non-finite values begin: first in order, then wherever FP32 exceeds the format by itself."""
    bad = newly_nonfinite(report, phase, reference)
    scale = report.log2_scale if phase is Phase.BACKWARD else 0
    beyond = [site for site in bad if reference[site.place].overflowed(report.format, scale).low]
    return [*bad[:1], *beyond]


def _wrong(report: Report) -> list[Site]:
    """Return the forward results that are far off, in order of execution."""
    return [
        site
        for site, pair in report.errors.items()
        if site.op and site.phase is Phase.FORWARD and pair.relative_rms > SUSPICIOUS_ERROR
    ]


def _failed(report: Report) -> Iterable[Site]:
    failure = report.low.failure
    if failure is None:
        return ()
    return (Site(failure.module, failure.op, "output", Phase.FORWARD, report.dtype, failure.file, failure.line),)
